"""How a command reaches the broker: as a Python program on its Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rayka.cli import ray_messages
from rayka.cli.exits import CliError, Exit
from rayka.client import runtime
from rayka.errors import RaykaError

if TYPE_CHECKING:
    from rayka.client.cluster import Cluster
    from rayka.client.connection import Connection


def find(data_dir: str | None) -> runtime.Running:
    """The broker that runs on this data directory, by default the one started last.

    Raises CliError(NOT_FOUND) if there is none.
    """
    directory = Path(data_dir) if data_dir else runtime.latest_data_dir()
    running = runtime.find(directory)
    if running is None:
        raise CliError(f"no broker runs on {directory}: start one with `rayka up`", Exit.NOT_FOUND)
    return running


@contextlib.contextmanager
def connected(args: argparse.Namespace) -> Iterator[Connection]:
    """A connection to the broker that `--data-dir`, `--address` or nothing chose.

    Raises CliError(NOT_FOUND) if it is not there.
    """
    address = args.address or find(args.data_dir).address
    from rayka.client.connection import connect

    ray_messages.divert(ray_messages.drop)
    logging.getLogger("ray").setLevel(logging.ERROR)  # the connection's own messages are not the command's
    try:
        connection = connect(address)
    except (ConnectionError, RaykaError) as error:
        raise CliError(f"no broker answers at {address}: {error}", Exit.NOT_FOUND) from None
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def attached(args: argparse.Namespace) -> Iterator[Cluster]:
    """The same, as Python programs see it."""
    with connected(args) as connection:
        from rayka.client.cluster import Cluster

        yield Cluster(connection)
