"""The bounds of a gateway: connections, bytes of requests under way, lines in the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

logger = logging.getLogger("rayka.gateway")

_DEFAULT_QUEUED_BYTES = 512 * 1024 * 1024
_LINES_PER_WINDOW = 20
_WINDOW_MS = 1000


class Limits(NamedTuple):
    """What the settings allow. Sizes in bytes; `queued_bytes` is for the whole process."""

    max_request_bytes: int
    queued_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    idle_ms: int
    connection_requests: int = 1000
    connection_bytes: int = 64 * 1024 * 1024
    write_high_water_bytes: int = 1024 * 1024

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
        )


def _overrides(text: str | tuple[str, ...] | None) -> Mapping[str, int]:
    """`"10.0.0.1:5,10.0.0.2:7"` as a mapping; what is not of that form is left out."""
    items = text.split(",") if isinstance(text, str) else text or ()
    pairs = (item.strip().rpartition(":") for item in items)
    return {host: int(count) for host, _, count in pairs if host and count.isdigit()}


class RequestBytes:
    """Bytes of requests under way in this process. Who finds it full waits for its turn.

    The one that fills it may go over the limit, so that a large one does not wait for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Callable[[], None], None] = {}  # in the order of their turns
        self.used = 0

    @property
    def is_full(self) -> bool:
        """Whether a request has to wait."""
        return self.used >= self._limit

    def acquire(self, size: int) -> None:
        """Count a request that begins."""
        self.used += size

    def release(self, size: int) -> None:
        """A request has been answered: whoever waits tries again, in order, as long as there is room."""
        self.used -= size
        turns = len(self._waiting)
        while turns and self.used < self._limit:
            turns -= 1
            resume = next(iter(self._waiting))
            del self._waiting[resume]
            resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when bytes have become free. Waiting twice is waiting once."""
        self._waiting[resume] = None


class ConnectionCounts:
    """Counts connections, in all and by client address."""

    def __init__(self) -> None:
        self._by_host: Counter[str] = Counter()
        self.total = 0

    def refusal(self, host: str, limits: Limits) -> str | None:
        """Why one more connection from `host` may not be, None if it may."""
        if self.total >= limits.max_connections:
            return f"max.connections={limits.max_connections} reached"
        allowed = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        if self._by_host[host] >= allowed:
            return f"max.connections.per.ip={allowed} reached"
        return None

    def add(self, host: str) -> None:
        """A connection has been accepted."""
        self.total += 1
        self._by_host[host] += 1

    def remove(self, host: str) -> None:
        """A connection that was added has ended."""
        self.total -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class Complaints:
    """Writes a line for each connection closed for a fault of its client, at most so many a second."""

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
