"""`rayka down`: stop the broker that `rayka up` runs."""

from __future__ import annotations

from pathlib import Path

import click

from rayka.cli.commands.up import stop
from rayka.cli.exits import Exit
from rayka.cli.parsing import Command
from rayka.client import runtime

EXAMPLES = """\
examples:
  rayka down                      stop the broker started last
  rayka down --data-dir /srv/rayka

Returns when the broker and its Ray are gone; the data stays. A broker that does not stop is killed.
Exit codes: 0 stopped or killed, 1 did not stop, 3 no broker ran.
"""


@click.command("down", cls=Command, epilog=EXAMPLES)
@click.option("--data-dir", metavar="DIR", help="The broker that runs on this data directory.")
def command(data_dir: str | None) -> Exit:
    """Stop the broker that `rayka up` runs, by default the one started last."""
    directory = Path(data_dir) if data_dir else runtime.latest_data_dir()
    if stop(directory):
        print(f"Stopped the broker on {directory}.")
    else:
        print(f"Killed the broker on {directory}, which did not stop cleanly; the next start recovers its logs.")
    return Exit.DONE
