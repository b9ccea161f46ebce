"""Checks the arguments of `send` and converts them to the parts of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rayka.client.producer.filling import Headers
from rayka.client.producer.route import TopicRoute
from rayka.client.settings import Serializer
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.builder import append_records

HeadersLike = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None

SINGLE_VALUES = (str, bytes, bytearray, memoryview)
"""One value, which would be mistaken for a list of its letters or bytes."""
_MAX_TIMESTAMP = 2**63 - 1


def require_list(argument: str, given: Any) -> None:
    """Raises INVALID_REQUEST for what has no elements by number, and for a single text, whose letters would be sent."""
    is_list = hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, Mapping)
    if isinstance(given, SINGLE_VALUES) or not is_list:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"{argument} must be a list, not {type(given).__name__}")


def bytes_of(argument: str, given: Any, serializer: Serializer | None) -> bytes | None:
    data = given if serializer is None else serializer(given)
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise RaykaError(
        ErrorCode.INVALID_REQUEST,
        f"{argument} must be bytes or None, not {type(data).__name__}; {argument}_serializer can make it so",
    )


def timestamp_of(given: Any) -> int:
    if isinstance(given, int) and 0 <= given <= _MAX_TIMESTAMP:
        return given
    raise RaykaError(ErrorCode.INVALID_REQUEST, f"timestamp_ms must be ms since the epoch, not {given!r}")


def headers_of(given: Any) -> Headers:
    pairs = tuple(given.items() if isinstance(given, Mapping) else given or ())
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and _is_bytes(pair[1])):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"headers must be (str, bytes or None) pairs, not {pair!r}")
    return pairs


def _is_bytes(value: object) -> bool:
    return value is None or isinstance(value, bytes)


def require_fits(route: TopicRoute, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    size = len(append_records((value,), (key,), (headers,), (0,)))
    if size > route.max_batch_size:
        raise RaykaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch with only this record has {size} bytes, "
            f"but topic {route.topic} has max.message.bytes={route.max_batch_size}",
        )
