"""What the command parsers have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayka.cli.exits import Exit

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subcommands = Any


def command(
    commands: Subcommands,
    name: str,
    summary: str,
    epilog: str,
    run: Callable[[argparse.Namespace], Exit] | None = None,
) -> argparse.ArgumentParser:
    """Adds a command: `summary` is its line in the list, `epilog` teaches it by examples."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    """The options that choose which broker a command talks to."""
    target = parser.add_argument_group("which broker (default: the one started last by `rayka up`)")
    target.add_argument("--data-dir", metavar="DIR", help="the one that runs on this data directory")
    target.add_argument(
        "--address", metavar="RAY_ADDRESS", help="the one in this Ray cluster (`auto`: on this machine)"
    )
