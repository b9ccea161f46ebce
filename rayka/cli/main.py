"""The `rayka` command: finds the subcommand, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rayka import __version__
from rayka.cli.commands import configs, consume, groups, log, produce, status, topics, tree, up
from rayka.cli.exits import CliError, Exit
from rayka.errors import ErrorCode, RaykaError

EPILOG = """\
start here:
  rayka up                                    start a broker; leave it running
  rayka topics create events --partitions 4   in another terminal
  echo hello | rayka produce events
  rayka consume events --from earliest
  rayka status

Every command explains itself: rayka COMMAND --help.
Exit codes: 0 done, 1 failed, 2 used wrongly, 3 no such topic, group or broker, 4 `up` gave up.
"""

ABSENT = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.BROKER_NOT_AVAILABLE,
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="rayka",
        description="A Kafka-compatible broker built of Ray actors.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"rayka {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for module in (up, status, topics, configs, groups, produce, consume, log, tree):
        module.register(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    args = parser().parse_args(arguments)
    args.arguments = arguments
    try:
        return int(args.run(args))
    except CliError as error:
        print(f"rayka: {error.message}", file=sys.stderr)
        return int(error.exit_code)
    except RaykaError as error:
        print(f"rayka: {error}", file=sys.stderr)
        return int(Exit.NOT_FOUND if error.code in ABSENT else Exit.FAILED)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `rayka consume t | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.DONE)


if __name__ == "__main__":
    sys.exit(main())
