"""What the commands have in common: examples at the end of --help, and the options that choose a broker."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from rayka.cli.exits import CliError, Exit

F = TypeVar("F", bound=Callable[..., Any])
CODES = "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 no such topic, group or broker.\n"


class _WithExamples(click.Command):
    """A command whose epilog is printed as it stands, after the options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(self.epilog)


class Command(_WithExamples):
    """A command."""


class Group(_WithExamples, click.Group):
    """A group of commands, each listed with the whole first sentence of its help."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=200)) for name, command in commands if command])


class LazyGroup(Group):
    """A group that imports a command's module only when that command is used. `modules`: name -> (module, summary)."""

    def __init__(self, *args: Any, modules: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, which suggests names only from the commands that are loaded."""
        name = args[0]
        if name not in self._modules and not name.startswith("-"):
            close = difflib.get_close_matches(name, self._modules)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        command: click.Command = importlib.import_module(self._modules[cmd_name][0]).command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A reader of its output that has enough (`rayka consume t | head`) is not an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.DONE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._modules.items()])


@dataclass(frozen=True, slots=True)
class Target:
    """Which broker a command talks to: by default the one that this user started last."""

    bootstrap_server: str | None = None
    data_dir: str | None = None
    address: str | None = None


def target_options(function: F) -> F:
    """Add --bootstrap-server, --data-dir and --address, which become one `target`."""
    return _with_target(function, shows_bootstrap_server=True)


def actor_options(function: F) -> F:
    """As `target_options`, for a command that asks the actors: it refuses --bootstrap-server, and its help omits it."""
    return _with_target(function, shows_bootstrap_server=False)


def _with_target(function: F, *, shows_bootstrap_server: bool) -> F:
    def run(bootstrap_server: str | None, data_dir: str | None, address: str | None, **options: Any) -> Any:
        if sum(value is not None for value in (bootstrap_server, data_dir, address)) > 1:
            raise CliError("give one of --bootstrap-server, --data-dir and --address", Exit.USAGE)
        return function(target=Target(bootstrap_server, data_dir, address), **options)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    bootstrap_server = click.option(
        "--bootstrap-server", metavar="HOST:PORT", help="Any broker, rayka or Kafka.", hidden=not shows_bootstrap_server
    )
    for option in (_ADDRESS, _DATA_DIR, bootstrap_server):
        option(run)
    return run  # type: ignore[return-value]


_DATA_DIR = click.option("--data-dir", metavar="DIR", help="The broker that runs on this data directory.")
_ADDRESS = click.option(
    "--address", metavar="RAY_ADDRESS", help="The broker in this Ray cluster (`auto`: on this machine)."
)


def json_option(help: str) -> Callable[[F], F]:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help=help)


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere, and with --yes, continue. Raises CliError if the answer is no."""
    if yes or not sys.stdin.isatty():
        return
    if not click.confirm(question, err=True):
        raise CliError("nothing was changed")


def only_one(**options: object) -> None:
    """Raises CliError(USAGE) if more than one of these options is set; their names have _ for -."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value not in (None, False, ())]
    if len(given) > 1:
        raise CliError(f"{' and '.join(given)} cannot be used together", Exit.USAGE)


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics whose names begin like this, for the shell."""
    return _complete(ctx, incomplete, "topics")


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Groups whose names begin like this, for the shell."""
    return _complete(ctx, incomplete, "groups")


def complete_share_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Share groups whose names begin like this, for the shell."""
    return _complete(ctx, incomplete, "share groups")


def _complete(ctx: click.Context, incomplete: str, what: str) -> list[str]:
    """The shell waits, so a broker that does not answer soon has no names."""
    from rayka.cli.attached import kafka
    from rayka.errors import RaykaError

    options = {name: ctx.params.get(name) for name in ("bootstrap_server", "data_dir")}
    try:
        with kafka(Target(**options), timeout_s=1.0) as cluster:
            if what == "topics":
                names = list(cluster.metadata(None).topics)
            else:
                from rayka.client.kafka.groups import KafkaGroupAdmin

                types = ("Share",) if what == "share groups" else ()
                names = [group.group_id for group in KafkaGroupAdmin(cluster).list_groups(types=types)]
    except (CliError, RaykaError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))
