"""The messages that two processes of rayka exchange, as bytes: msgpack of frozen dataclasses, never pickle.

A `MessageCodec` knows a closed set of message types. How each is written and checked follows from its fields and their
type hints: a dataclass is a map by field name, a named tuple an array, an enum its value, a UUID 16 bytes. A field that
the sender leaves out has its default; one that the receiver does not know is ignored.

    length of the name u8 | name of the type | msgpack

An error travels as a message too: encoding a `RaykaError` and decoding it gives an equal `RaykaError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from rayka.errors import ErrorCode, RaykaError

_MAX_NAME_BYTES = 255


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorMessage:
    """A `RaykaError` on its way."""

    code: ErrorCode
    message: str


class MessageCodec:
    """Encodes and decodes the messages of `types`, which are frozen dataclasses or named tuples."""

    def __init__(self, types: Iterable[type]) -> None:
        self._encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
        self._headers: dict[type, bytes] = {}
        self._decoders: dict[bytes, msgspec.msgpack.Decoder[Any]] = {}
        for message_type in (ErrorMessage, *types):
            self._register(message_type)

    def _register(self, message_type: type) -> None:
        name = message_type.__name__.encode()
        if name in self._decoders:
            raise ValueError(f"two message types have the name {message_type.__name__}")
        if len(name) > _MAX_NAME_BYTES or not _is_value(message_type):
            raise ValueError(f"{message_type.__name__} is neither a frozen dataclass nor a named tuple")
        self._headers[message_type] = bytes((len(name),)) + name
        self._decoders[name] = msgspec.msgpack.Decoder(message_type)

    def encode(self, message: object) -> bytes:
        """The bytes of a message or of a RaykaError. Raises INVALID_REQUEST for a value of any other type."""
        if isinstance(message, RaykaError):
            message = ErrorMessage(message.code, message.message)
        header = self._headers.get(type(message))
        if header is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"{type(message).__name__} is not a message type")
        try:
            return header + self._encoder.encode(message)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            reason = f"{type(message).__name__} can't be encoded: {error}"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason) from error

    def decode(self, data: bytes | memoryview) -> Any:
        """The message, or the RaykaError, of these bytes.

        Raises INVALID_REQUEST for an unknown type and for bytes that are not a message of their type.
        """
        view = memoryview(data)
        end = 1 + view[0] if view else 0
        name = bytes(view[1:end])
        decoder = self._decoders.get(name)
        if decoder is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"there is no message type {name!r}")
        try:
            message = decoder.decode(view[end:])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"malformed {name.decode()}: {error}") from error
        return RaykaError(message.code, message.message) if isinstance(message, ErrorMessage) else message


def _is_value(message_type: type) -> bool:
    if issubclass(message_type, tuple):
        return hasattr(message_type, "_fields")
    parameters = getattr(message_type, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)
