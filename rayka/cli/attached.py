"""How a command reaches the broker: as a Python program on its Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayka.cli import runtime
from rayka.cli.exits import CliError, Exit

if TYPE_CHECKING:
    from rayka.client.cluster import Cluster


@contextlib.contextmanager
def attached(args: argparse.Namespace) -> Iterator[Cluster]:
    """The cluster that `--data-dir`, `--address` or nothing chose. Raises CliError(NOT_FOUND) if it is not there."""
    address = args.address or runtime.find(args.data_dir).address
    import rayka

    logging.getLogger("ray").setLevel(logging.ERROR)  # the connection's own messages are not the command's
    try:
        cluster = rayka.connect(address)
    except (ConnectionError, rayka.RaykaError) as error:
        raise CliError(f"no broker answers at {address}: {error}", Exit.NOT_FOUND) from None
    try:
        yield cluster
    finally:
        cluster.close()
