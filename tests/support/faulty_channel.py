"""The local channel of a leader, in front of partitions where appends may fail."""

from __future__ import annotations

from pathlib import Path

from rayka.actors.channel.server import ChannelRequest, ChannelServer
from rayka.types import AppendRequest
from tests.support.client_connection import LocalConnection


class FaultyChannel:
    """Carries out appends as `connection.faults` says; `appends` counts those that came by the channel."""

    def __init__(self, connection: LocalConnection, directory: Path) -> None:
        self.appends = 0
        self._connection = connection
        self._path = str(directory / "channel" / "leader.0.sock")
        self._server = ChannelServer(self._path, self._serve)

    def open(self) -> None:
        """Listen, and tell clients so."""
        self._connection.loop.run(self._server.start())
        self._connection.faults.channel = self._path, -1

    def close(self) -> None:
        """Drop every connection and stop listening. Safe to repeat."""
        self._connection.loop.run(self._server.stop())

    def _serve(self, request: ChannelRequest) -> None:
        params, ((topic_partition, leader_epoch, _, _),) = request.message
        self.appends += 1
        append = AppendRequest(topic_partition, memoryview(bytearray(request.payload)), leader_epoch)
        future = self._connection.faults.append([append], params)
        future.add_done_callback(lambda answered: request.answer(answered.result()))
