"""How a command reaches the broker.

Most commands talk the Kafka protocol to HOST:PORT, found in the file that `rayka up` writes (`runtime`). `status` asks
the actors themselves and joins the Ray cluster, which takes a second; so does --address, to find out HOST:PORT.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Target
from rayka.client import runtime
from rayka.errors import RaykaError

if TYPE_CHECKING:
    from rayka.client.connection import ClusterConnection
    from rayka.client.kafka.cluster import KafkaCluster

TIMEOUT_S = 30.0


def find(data_dir: str | None) -> runtime.Running:
    """The broker that runs on this data directory, by default the one started last.

    Raises CliError(NOT_FOUND) if there is none.
    """
    directory = Path(data_dir) if data_dir else runtime.latest_data_dir()
    running = runtime.find(directory)
    if running is None:
        raise CliError(f"no broker runs on {directory}: {_hint(data_dir, directory)}", Exit.NOT_FOUND)
    return running


def _hint(data_dir: str | None, directory: Path) -> str:
    """If the broker that was started last does not run any more, another one may still run."""
    if data_dir is None and directory != runtime.default_data_dir():
        return "name another one with --data-dir or --bootstrap-server, or start one with `rayka up`"
    return "start one with `rayka up`"


def bootstrap_servers(target: Target) -> str:
    """HOST:PORT of the broker that the options chose. Raises CliError(NOT_FOUND) if there is none, CliError(USAGE)."""
    if target.bootstrap_server is not None:
        from rayka.client.kafka.cluster import addresses

        try:
            addresses(target.bootstrap_server)
        except RaykaError as error:
            raise CliError(f"--bootstrap-server {error.message}", Exit.USAGE) from None
        return target.bootstrap_server
    if target.address is None:
        return find(target.data_dir).bootstrap_servers
    with connected(target) as connection:
        return connection.bootstrap_servers


@contextlib.contextmanager
def kafka(target: Target, timeout_s: float = TIMEOUT_S) -> Iterator[KafkaCluster]:
    """The cluster that the options chose, by the Kafka protocol. Raises CliError(NOT_FOUND), RaykaError."""
    from rayka.client.kafka.cluster import KafkaCluster

    with KafkaCluster(bootstrap_servers(target), timeout_s) as cluster:
        yield cluster


@contextlib.contextmanager
def connected(target: Target) -> Iterator[ClusterConnection]:
    """A connection to the actors, through Ray. Raises CliError(NOT_FOUND) if they are not there."""
    from rayka.cli import ray_messages

    address = target.address or find(target.data_dir).address
    from rayka.client.connection import connect

    ray_messages.divert(ray_messages.drop)
    logging.getLogger("ray").setLevel(logging.ERROR)  # the connection's own messages are not the command's
    try:
        connection = connect(address)
    except ConnectionError as error:
        raise CliError(f"no broker answers at {address}: {error}", Exit.NOT_FOUND) from None
    except RaykaError as error:
        raise CliError(f"no broker answers at {address}: {error.message}", Exit.NOT_FOUND) from None
    try:
        yield connection
    finally:
        connection.close()
