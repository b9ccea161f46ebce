"""The `rayka` command: finds the subcommand, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import click

from rayka import __version__
from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import LazyGroup
from rayka.errors import ErrorCode, RaykaError

EPILOG = """\
Start here:
  rayka up                                    start a broker; leave it running
  rayka topics create events --partitions 4   in another terminal
  echo hello | rayka produce events
  rayka consume events
  rayka status
  rayka down                                  stop the broker; the data stays

Completion of commands, topics and groups for your shell (bash, zsh or fish):
  eval "$(rayka completion bash)"

More about a command: rayka COMMAND --help.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such topic, group or broker, 4 the broker of `up` kept failing.
"""
MODULES = {
    name: (f"rayka.cli.commands.{module}", summary)
    for name, module, summary in (
        ("up", "up", "start a broker and keep it running"),
        ("down", "down", "stop the broker that `rayka up` runs"),
        ("status", "status", "show the brokers, actors and topics of a running broker"),
        ("topics", "topics", "create, list, describe, alter and delete topics, delete records"),
        ("configs", "configs", "show and change settings of topics, brokers and groups"),
        ("groups", "groups", "show consumer groups and their lag, move offsets, delete"),
        ("share-groups", "share_groups", "show share groups, their lag and records, move offsets, delete"),
        ("transactions", "transactions", "show transactions, find those that hang, abort one"),
        ("produce", "produce", "write lines to a topic"),
        ("consume", "consume", "print the records of topics"),
        ("log", "log", "show and check log files on disk"),
        ("tree", "tree", "show brokers, topics and groups as a registry of paths"),
        ("completion", "completion", "print the script that completes commands in a shell"),
    )
}

PROGRAM = "rayka"
COMPLETE = "_RAYKA_COMPLETE"
"""The variable with which a shell asks for completions."""

ABSENT = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.BROKER_NOT_AVAILABLE,
)


@click.command(cls=LazyGroup, modules=MODULES, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="rayka %(version)s")
def rayka() -> None:
    """A Kafka-compatible broker built of Ray actors."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return int(rayka.main(list(arguments), PROGRAM, COMPLETE, standalone_mode=False, obj=tuple(arguments)) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return int(Exit.USAGE)
    except click.ClickException as error:
        hint = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "rayka"
        message = re.sub(r"\s*\n\s*", " ", error.format_message())
        return _fail(f"{message} (see `{hint} --help`)", Exit.USAGE)
    except CliError as error:
        return _fail(error.message, error.exit_code)
    except RaykaError as error:
        return _fail(str(error), Exit.NOT_FOUND if error.code in ABSENT else Exit.FAILED)
    except (KeyboardInterrupt, click.Abort):
        return 130


def _fail(message: str, exit_code: Exit) -> int:
    print(f"rayka: {message}", file=sys.stderr)
    return int(exit_code)


if __name__ == "__main__":
    sys.exit(main())
