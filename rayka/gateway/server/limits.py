"""The limits of a gateway: connections, bytes of requests and responses, lines in the log."""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rayka.config.definition import INT_MAX
from rayka.gateway.server.node_usage import NodeUsage
from rayka.types import is_number

logger = logging.getLogger("rayka.gateway")

COPIED_BYTES = 4 * 1024 * 1024
"""The most bytes of records in a response that do not come from this node's files. They stay in memory until the client
has taken them."""
_DEFAULT_QUEUED_BYTES = 512 * 1024 * 1024
_PEER_POLL_S = 0.01
"""How often a request that waits for room looks whether another process has released bytes: nobody tells it."""
_LINES_PER_WINDOW = 20
_WINDOW_MS = 1000
_CONNECTION_DESCRIPTORS = 2
"""The most that one connection uses: it has a second one while its client takes a response slowly."""


class Limits(NamedTuple):
    """What the settings allow. Sizes in bytes; all but `process_connections` and `connection_*` are for the node."""

    max_request_bytes: int
    queued_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    idle_ms: int
    connection_requests: int = 1000
    connection_bytes: int = 64 * 1024 * 1024
    process_connections: int = INT_MAX

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Limits:
        """The limits that a broker's settings give."""
        queued = config["queued.max.request.bytes"]
        return cls(
            max_request_bytes=config["socket.request.max.bytes"],
            queued_bytes=queued if queued > 0 else _DEFAULT_QUEUED_BYTES,
            max_connections=config["max.connections"],
            max_connections_per_ip=config["max.connections.per.ip"],
            max_connections_per_ip_overrides=_overrides(config["max.connections.per.ip.overrides"]),
            idle_ms=config["connections.max.idle.ms"],
            process_connections=affordable_connections(),
        )


def _overrides(text: str | tuple[str, ...] | None) -> Mapping[str, int]:
    """`"10.0.0.1:5,10.0.0.2:7"` as a mapping; what is not of that form is left out."""
    items = text.split(",") if isinstance(text, str) else text or ()
    pairs = (item.strip().rpartition(":") for item in items)
    return {host.strip(): int(count) for host, _, count in pairs if host.strip() and is_number(count.strip())}


class RequestBytes:
    """Bytes of requests and responses in memory: requests being received and under way, responses not yet taken.

    The limit holds for the node. Each process has a quarter of its even share for itself, below which it never waits
    for others. A request that finds room may go over the limit, so that a large one does not wait for ever.
    """

    def __init__(self, limit: int, usage: NodeUsage, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._limit = limit
        self._usage = usage
        self._count = usage.bytes
        self._call_later = call_later
        self._waiting: dict[Callable[[], None], None] = {}  # in the order of their turns
        self._is_polling = False
        self._is_resuming = False  # soon

    @property
    def used(self) -> int:
        """The bytes of this process."""
        return self._count.own

    @property
    def is_full(self) -> bool:
        """Whether a request has to wait."""
        used = self._count.own
        if not self._usage.peers:
            return used >= self._limit
        processes = self._usage.processes
        reserve = self._limit // (4 * processes)
        return used >= reserve and used + self._count.others >= self._limit - (processes - 1) * reserve

    def acquire(self, size: int) -> None:
        """Count bytes."""
        self._count.add(size)

    def release(self, size: int) -> None:
        """Count bytes no longer. Those that wait resume in the loop's next iteration, in order, while there is room.

        They never resume within this call: a request that is resumed and answered at once releases bytes itself.
        """
        self._count.add(-size)
        if self._waiting and not self._is_resuming:
            self._is_resuming = True
            self._call_later(0, self._resume_soon)

    def _resume_soon(self) -> None:
        self._is_resuming = False
        self._resume()

    def _resume(self) -> None:
        turns = len(self._waiting)
        while turns and self._waiting and not self.is_full:
            turns -= 1
            resume = next(iter(self._waiting))
            del self._waiting[resume]
            resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when bytes have become free. Waiting twice is waiting once."""
        self._waiting[resume] = None
        if self._usage.peers and not self._is_polling:
            self._is_polling = True
            self._call_later(_PEER_POLL_S, self._poll)

    def _poll(self) -> None:
        """Look whether another process has released bytes."""
        self._is_polling = False
        self._resume()
        if self._waiting:
            self._is_polling = True
            self._call_later(_PEER_POLL_S, self._poll)


class CountedBytes:
    """What one connection has counted for one purpose. It is counted once, however often its size is set."""

    __slots__ = ("_request_bytes", "size")

    def __init__(self, request_bytes: RequestBytes) -> None:
        self._request_bytes = request_bytes
        self.size = 0

    def set(self, size: int) -> None:
        """Count `size` bytes in place of those counted before."""
        more, self.size = size - self.size, size
        if more > 0:
            self._request_bytes.acquire(more)
        elif more < 0:
            self._request_bytes.release(-more)


class ConnectionCounts:
    """Counts the connections of the node, in all and by client address."""

    def __init__(self, usage: NodeUsage) -> None:
        self._usage = usage

    @property
    def total(self) -> int:
        """The connections of all processes."""
        return self._usage.connections.own + self._usage.connections.others

    def add(self, host: str, limits: Limits, *, has_moved: bool = False) -> str | None:
        """Count a connection from `host`, or say why it may not be.

        One that has moved here from another process was accepted there, and may still be counted there too: the
        node's limits do not refuse it.
        """
        self._usage.connected(host, 1)
        reason = self._process_refusal(limits) or (None if has_moved else self._node_refusal(host, limits))
        if reason is not None:
            self.remove(host)
        return reason

    def _process_refusal(self, limits: Limits) -> str | None:
        if self._usage.connections.own > limits.process_connections:
            return f"{limits.process_connections} connections use up the file descriptors that clients may have"
        return None

    def _node_refusal(self, host: str, limits: Limits) -> str | None:
        if self.total > limits.max_connections:
            return f"max.connections={limits.max_connections} reached"
        allowed = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        if self._usage.connections_from(host) > allowed:
            return f"max.connections.per.ip={allowed} reached"
        return None

    def remove(self, host: str) -> None:
        """A connection that was added has ended."""
        self._usage.connected(host, -1)


def raise_descriptor_limit() -> None:
    """Let this process open as many files as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def affordable_connections() -> int:
    """How many connections may use half of the descriptors; the others are for logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 2 // _CONNECTION_DESCRIPTORS if soft != resource.RLIM_INFINITY else INT_MAX


class Complaints:
    """Logs each connection that is closed for a fault of its client, at most `_LINES_PER_WINDOW` a second."""

    def __init__(self) -> None:
        self._window_start_ms = 0
        self._lines = 0
        self._suppressed = 0

    def report(self, now_ms: int, client: str, request: str, reason: str) -> None:
        """Name the client's address, the request and what was wrong with it."""
        if now_ms - self._window_start_ms >= _WINDOW_MS:
            if self._suppressed:
                logger.warning("%d more connections were closed for faults of their clients", self._suppressed)
            self._window_start_ms, self._lines, self._suppressed = now_ms, 0, 0
        self._lines += 1
        if self._lines > _LINES_PER_WINDOW:
            self._suppressed += 1
        else:
            logger.warning("closed the connection from %s: %s: %s", client, request, reason)
