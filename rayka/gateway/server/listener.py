"""Accepts connections on a port and closes those that are idle or stalled.

Stopping has an order: accept nothing more, answer what is in progress, then close the connections and what they share.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from rayka.config import BrokerConfig
from rayka.gateway.api import APIS
from rayka.gateway.ports import Broker
from rayka.gateway.server.connection import ClientConnection
from rayka.gateway.server.context import Context
from rayka.gateway.server.handover import HandoverListener
from rayka.gateway.server.limits import raise_descriptor_limit
from rayka.gateway.server.node_usage import NodeUsage

logger = logging.getLogger("rayka.gateway")

_STOP_GRACE_S = 5.0
_LONGEST_SWEEP_S = 1.0
_STALLED_S = 10.0
"""How long a client may take nothing before its connection is closed, when others wait for the bytes that it holds."""


class Listener:
    """A gateway's TCP port, on loopback unless told otherwise. Port 0 takes any free one.

    The gateways of a node share their limits through `usage_dir`; others hand connections over at `handover_path`.
    """

    def __init__(
        self,
        broker: Broker,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        reuse_port: bool = True,
        usage_dir: str | None = None,
        handover_path: str | None = None,
    ) -> None:
        self._handover_path = handover_path
        self._handover: HandoverListener | None = None
        self._moving: set[asyncio.Task[None]] = set()
        self._broker = broker
        self._usage_dir = usage_dir
        self._host = host
        self._port = port
        self._reuse_port = reuse_port
        self._server: asyncio.Server | None = None
        self._context: Context | None = None
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._port

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._context.connections) if self._context is not None else 0

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        raise_descriptor_limit()
        context = self._context = Context(self._broker, APIS, loop, NodeUsage(self._usage_dir))
        self._server = await loop.create_server(
            lambda: ClientConnection(context),
            self._host,
            self._port,
            family=socket.AF_UNSPEC,
            backlog=self._broker.config["socket.listen.backlog.size"],
            reuse_address=True,
            reuse_port=self._reuse_port,
        )
        self._port = self._server.sockets[0].getsockname()[1]
        for listening in self._server.sockets:
            _size_buffers(listening, self._broker.config)
        if self._handover_path is not None:
            self._handover = HandoverListener(self._handover_path, loop, self._take_over)
            self._handover.start()
        self._schedule_sweep()

    def _take_over(self, accepted: socket.socket, moves: int) -> None:
        """Serve a connection that another process accepted."""
        context = self._context
        assert context is not None

        async def connect() -> None:
            try:
                await context.loop.connect_accepted_socket(lambda: ClientConnection(context, moves), accepted)
            except OSError as error:
                logger.info("a connection ended while it was handed over: %s", error)
                accepted.close()

        task = context.loop.create_task(connect())
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Accept no more connections, answer what is in progress for at most `grace_s`, close."""
        if self._server is None or self._context is None:
            return
        self._server.close()
        if self._handover is not None:
            self._handover.close()
        if self._sweep is not None:
            self._sweep.cancel()
        context = self._context
        for connection in list(context.connections):
            connection.finish()
        try:
            await asyncio.wait_for(context.all_closed(), grace_s)
        except TimeoutError:
            for connection in list(context.connections):
                connection.abort()
            await context.all_closed()
        context.segment_files.close()
        context.conversions.close()
        context.handover.close()
        context.usage.close()
        self._server = None

    def _schedule_sweep(self) -> None:
        assert self._context is not None
        interval_s = min(max(self._context.limits.idle_ms / 10_000, 0.01), _LONGEST_SWEEP_S)
        self._sweep = self._context.loop.call_later(interval_s, self._sweep_connections)

    def _sweep_connections(self) -> None:
        try:
            self._expire_connections()
        finally:
            self._schedule_sweep()

    def _expire_connections(self) -> None:
        context = self._context
        assert context is not None
        context.refresh()
        context.usage.refresh()
        context.segment_files.drop_deleted()
        context.make_room(context.loop.time() - _STALLED_S)
        if context.limits.idle_ms > 0:
            before = context.loop.time() - context.limits.idle_ms / 1000
            for connection in list(context.connections):
                connection.expire(before)


def _size_buffers(listening: socket.socket, config: BrokerConfig) -> None:
    """Give accepted connections the socket buffers that are configured, receive buffers only if they are set.

    Buffers that the system sizes grow. From a large send buffer the client takes what has left the processor's cache:
    sending then costs twice the processor time. A large receive buffer saves reads.
    """
    send_bytes, receive_bytes = config["socket.send.buffer.bytes"], config["socket.receive.buffer.bytes"]
    if send_bytes > 0:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    if "socket.receive.buffer.bytes" in config.texts and receive_bytes > 0:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
