"""What the connections of one gateway share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rayka.gateway.handlers.fetch.sessions import FetchSessions
from rayka.gateway.handlers.share.request import names_of
from rayka.gateway.ports import Broker
from rayka.gateway.server.busy_poll import BusyPoll
from rayka.gateway.server.conversions import Conversions
from rayka.gateway.server.handover import HandoverSender
from rayka.gateway.server.limits import Complaints, ConnectionCounts, Limits, RequestBytes
from rayka.gateway.server.node_usage import NodeUsage
from rayka.gateway.server.request import Api
from rayka.gateway.server.response_writer import PIECE_BYTES
from rayka.gateway.server.segment_files import SegmentFiles
from rayka.share.session import ShareSessions

if TYPE_CHECKING:
    from rayka.gateway.server.connection import ClientConnection

# What one read from a socket takes at most; a larger frame is then received where it will stay.
SCRATCH_BYTES = 256 * 1024


class Context:
    """One for each gateway; `usage` counts what all gateways of the node use.

    Every connection receives the beginning of a frame in `scratch`, and gathers what it sends in `piece`: the event
    loop uses them within one read or write.
    """

    def __init__(
        self,
        broker: Broker,
        apis: Mapping[int, Api],
        loop: asyncio.AbstractEventLoop,
        usage: NodeUsage | None = None,
    ) -> None:
        self.broker = broker
        self.apis = apis
        self.loop = loop
        self._config = broker.config
        self.limits = Limits.of(self._config)
        self.usage = usage if usage is not None else NodeUsage()
        self.request_bytes = RequestBytes(self.limits.queued_bytes, self.usage, loop.call_later)
        self.handover = HandoverSender()
        self.connection_counts = ConnectionCounts(self.usage)
        self.connections: set[ClientConnection] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self.complaints = Complaints()
        self.busy_poll = BusyPoll(loop.call_soon)
        self.sessions = FetchSessions(self._config, self.usage.fetch_sessions)
        self.share_sessions = ShareSessions(uuid.uuid4().hex, self.usage.share_sessions)
        self.segment_files = SegmentFiles()
        self.conversions = Conversions(loop)
        self.fetch_max_bytes: int = self._config["fetch.max.bytes"]
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.piece = bytearray(PIECE_BYTES)

    def refresh(self) -> None:
        """Take up settings that were changed at run time."""
        config = self.broker.config
        if config is not self._config:
            self._config = config
            self.limits = Limits.of(config)
            self.fetch_max_bytes = config["fetch.max.bytes"]

    def add(self, connection: ClientConnection) -> str | None:
        """A connection has begun; returns why it may not continue, None if it may."""
        has_moved = connection.affinity.moves > 0
        refusal = self.connection_counts.add(connection.client_host, self.limits, has_moved=has_moved)
        if refusal is None:
            self.connections.add(connection)
            self._all_closed.clear()
        return refusal

    def remove(self, connection: ClientConnection) -> None:
        """A connection has ended; one that was refused was never added."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self.connection_counts.remove(connection.client_host)
        if len(self.share_sessions):
            self._end_share_sessions(connection)
        if not self.connections:
            self._all_closed.set()

    def _end_share_sessions(self, connection: ClientConnection) -> None:
        """Give back the records that members hold whose connection has ended."""
        for session in self.share_sessions.disconnected(connection):
            ending = self.broker.share_leaders.end_session(
                *session.key, names_of(session, self.broker.image), is_lost=True, session_id=session.session_id
            )
            task = self.loop.create_task(ending)
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    def make_room(self, before: float) -> None:
        """If there is no room for requests, close connections whose clients keep bytes here without progress.

        Those that have not moved since `before` (the loop's clock) and hold most are closed first.
        """
        if not self.request_bytes.is_full:
            return
        stalled = [one for one in self.connections if one.held_bytes and one.last_progress < before]
        for connection in sorted(stalled, key=lambda one: one.held_bytes, reverse=True):
            if not self.request_bytes.is_full:
                return
            self.complain(connection.client, "memory", f"{connection.held_bytes} bytes waited for the client too long")
            connection.abort()

    async def all_closed(self) -> None:
        """Return when there are no connections."""
        await self._all_closed.wait()

    def complain(self, client: str, request: str, reason: str) -> None:
        """Log a connection that is closed for a fault of its client."""
        self.complaints.report(int(self.loop.time() * 1000), client, request, reason)
