"""Hands a client's connection to the process on this node that leads the partitions it asks for.

Theory of operation. Several processes of a node accept connections on one port, so most connections end in another
process than their leader's, and each request costs two changes of process more. When a connection has asked for
partitions of one other process only, several times in a row, and nothing of it is in progress, its descriptor goes to
that process as a datagram on a Unix socket (SCM_RIGHTS); both sides continue as if it had been accepted there. A
connection that moves often must ask more often before it moves again.

Only what the descriptor carries moves along: a fetch session does not, and its client opens another. A share session
would give back the records that its member holds, so a connection that has had one stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Final

from rayka.coordinator.groups.spec import OFFSETS_TOPIC
from rayka.coordinator.transactions.spec import TRANSACTION_STATE_TOPIC
from rayka.gateway.ports import Broker
from rayka.types import TopicPartition

logger = logging.getLogger("rayka.gateway")

_FIRST_MOVE_REQUESTS: Final = 8
_MOST_DOUBLINGS: Final = 10
# Requests for more partitions than this are hardly ever for those of one process alone.
_MOST_FOLLOWED: Final = 16
_MOVES: Final = struct.Struct("<I")


class Affinity:
    """Counts how often in a row a connection asked for partitions of one other process, the one at `path`.

    The connection was handed over `moves` times before. If it carries records, it follows their leader. Otherwise it
    follows the coordinator of its group or transactional id: most clients have connections of their own for that.
    """

    __slots__ = ("_broker", "_carries_records", "_count", "_threshold", "moves", "path")

    def __init__(self, broker: Broker, moves: int = 0) -> None:
        self.moves = moves
        self.path: str | None = None
        self._broker = broker
        self._carries_records = False
        self._count = 0
        self._threshold = _FIRST_MOVE_REQUESTS << min(moves, _MOST_DOUBLINGS)

    def follow(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """A request is for these partitions."""
        process_of = self._broker.partitions.process_of
        path = None
        if len(topic_partitions) == 1:
            path = process_of(topic_partitions[0])
        elif len(topic_partitions) <= _MOST_FOLLOWED:
            processes = {process_of(topic_partition) for topic_partition in topic_partitions}
            path = processes.pop() if len(processes) == 1 else None
        self.follow_process(path)

    def follow_process(self, path: str | None) -> None:
        """A request is for partitions of the process at `path`; None stands for this one, or several."""
        self._carries_records = True
        self._note(path)

    def follow_group(self, group_id: str) -> None:
        """A request is for a group."""
        if not self._carries_records:
            self._follow_coordinator(OFFSETS_TOPIC, self._broker.groups.partition_of(group_id))

    def follow_transaction(self, transactional_id: str) -> None:
        """A request is for a transaction."""
        if not self._carries_records:
            partition = self._broker.transactions.partition_of(transactional_id)
            self._follow_coordinator(TRANSACTION_STATE_TOPIC, partition)

    def _follow_coordinator(self, topic: str, partition: int) -> None:
        self._note(self._broker.partitions.process_of(TopicPartition(topic, partition)))

    def _note(self, path: str | None) -> None:
        """Count a request for the process at `path`; None stands for this one, or several."""
        if path != self.path:
            self.path, self._count = path, 0
        if path is not None:
            self._count += 1

    def stay(self) -> None:
        """Never move the connection, whatever it asks for."""
        self._threshold = sys.maxsize

    def reset(self) -> None:
        """Begin to count again."""
        self.path, self._count = None, 0

    @property
    def is_due(self) -> bool:
        """Whether the connection belongs to the other process."""
        return self._count >= self._threshold


class HandoverSender:
    """Sends descriptors to other processes."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def send(self, path: str, descriptor: int, moves: int) -> bool:
        """Give a connection to the process that listens at `path`; False if it does not take it now."""
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))
            self._socket.sendmsg([_MOVES.pack(moves)], [rights], 0, path)
        except OSError as error:
            logger.debug("cannot hand a connection to %s: %s", path, error)
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class HandoverListener:
    """Takes connections from other processes; `accept(connection, moves)` is called for each."""

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, accept: Callable[[socket.socket, int], None]
    ) -> None:
        self._path = path
        self._loop = loop
        self._accept = accept
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def start(self) -> None:
        """Listen, in place of earlier starts of this process. Raises OSError."""
        for socket_path in _sockets_of_all_starts(self._path):
            os.unlink(socket_path)
        self._socket.bind(self._path)
        self._loop.add_reader(self._socket, self._receive)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MOVES.size, 4)
            for descriptor in descriptors:
                connection = socket.socket(fileno=descriptor)
                connection.set_inheritable(False)  # a program started here would keep the client's connection open
                connection.setblocking(False)
                self._accept(connection, _MOVES.unpack(data)[0])

    def close(self) -> None:
        """Take no more connections."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def _sockets_of_all_starts(path: str) -> list[str]:
    """The sockets that a process has left, whose path is `NAME.EPOCH.fds`: each start has another epoch."""
    name, _, suffix = path.rsplit(".", 2)
    return glob.glob(f"{glob.escape(name)}.*.{suffix}")
