"""A request on its way, and the row of the API table that says who handles it."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rayka.gateway.wire.reader import INT32, Frame
from rayka.gateway.wire.schema import ApiKey, MessageSchema, ResponseTypes

if TYPE_CHECKING:
    from rayka.gateway.ports import Broker
    from rayka.gateway.server.connection import ClientConnection
    from rayka.gateway.server.context import Context
    from rayka.gateway.server.response_writer import Part


class PendingRequest:
    """One request under way. Its response is written after those of all earlier requests of the connection.

    `frame` is the request without its length prefix; `position` is where the body begins. `waiting` is
    cancelled when the client goes away.
    """

    __slots__ = (
        "answered",
        "api",
        "client_id",
        "connection",
        "correlation_id",
        "frame",
        "position",
        "response",
        "size",
        "version",
        "waiting",
    )

    def __init__(
        self,
        connection: ClientConnection,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        frame: Frame,
    ) -> None:
        self.connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.frame = frame
        self.size = len(frame)
        self.position = 0
        self.response: Sequence[Part] = ()
        self.answered = False
        self.waiting: Future[Any] | None = None

    def answer(self, response: bytes | bytearray | None) -> None:
        """Give the whole response frame, None for a request that gets no response (Produce with acks 0)."""
        self.answer_in_parts(() if response is None else (response,))

    def answer_in_parts(self, parts: Sequence[Part]) -> None:
        """Give the response frame in parts, slices of segments among them; at most once."""
        self.response = parts
        self.answered = True
        self.waiting = None
        self.frame = b""
        self.connection.answered(self)

    def refuse(self, reason: str) -> None:
        """Close the connection: this request cannot be answered."""
        self.connection.refuse(reason, self.describe())

    def describe(self) -> str:
        """The request in a log line."""
        return f"{self.api.key.title}({self.api.key.value}) v{self.version}"


def response_head(correlation_id: int, flexible: bool) -> bytearray:
    """The beginning of a response frame, its length still 0 (response header 0 or 1)."""
    head = bytearray(4)
    head += INT32.pack(correlation_id)
    if flexible:
        head.append(0)
    return head


def finish_frame(out: bytearray) -> bytearray:
    """Write the frame's length into the four bytes left for it."""
    INT32.pack_into(out, 0, len(out) - 4)
    return out


@dataclass(slots=True)
class Call:
    """A decoded request for an entity handler."""

    context: Context
    pending: PendingRequest
    request: Any
    messages: MessageSchema

    @property
    def version(self) -> int:
        """The version of the request."""
        return self.pending.version

    @property
    def types(self) -> ResponseTypes:
        """The response classes of its version."""
        return self.messages.types

    @property
    def client_id(self) -> str | None:
        """What the client calls itself; None if it gives no name."""
        return self.pending.client_id

    @property
    def client_host(self) -> str:
        """The address of the client."""
        return self.pending.connection.client_host

    @property
    def broker(self) -> Broker:
        """The ports to the rest of the broker."""
        return self.context.broker

    def field(self, name: str, default: Any) -> Any:
        """A field of the request, `default` where this version lacks it."""
        return getattr(self.request, name, default)

    async def respond(self) -> bytearray:
        """Run the handler; returns the frame of its response."""
        handle = self.pending.api.handle
        assert handle is not None
        response = await handle(self)
        return response if isinstance(response, bytearray) else self.encode(response)

    def encode(self, response: Any) -> bytearray:
        """The frame of a response entity."""
        pending = self.pending
        out = response_head(pending.correlation_id, pending.api.is_flexible(pending.version))
        self.messages.write(out, response)
        return finish_frame(out)


EntityHandler = Callable[[Call], Awaitable[Any]]
FrameHandler = Callable[["Context", PendingRequest], None]


class Api(NamedTuple):
    """A row of the API table: the versions served, the first one with compact lengths, and the handler.

    Either `handle` turns a decoded request into a response entity or its frame, or `handle_frame` parses the frame and
    answers the request itself; with both, `handle_frame` comes first and may leave the request to `handle`.
    Requests of a `pipelined` API start while earlier ones are in progress, from version `first_pipelined` on.
    """

    key: ApiKey
    min_version: int
    max_version: int
    first_flexible: int
    handle: EntityHandler | None = None
    handle_frame: FrameHandler | None = None
    pipelined: bool = False
    first_pipelined: int = 0

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return version >= self.first_flexible

    def may_overlap(self, version: int) -> bool:
        """Whether a request of this version may be under way beside others like it."""
        return self.pipelined and version >= self.first_pipelined
