"""Lists of values as rows for a topic. Importing this module imports numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from rayka.client.producer.arguments import SINGLE_VALUES, HeadersLike, bytes_of, headers_of, require_list
from rayka.client.producer.filling import Headers
from rayka.client.settings import ProducerConfig, Serializer
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import Longs
from rayka.storage.columns.rows import Rows, rows_of

_MAX_CHUNK_ROWS = 1 << 16
ROW_OVERHEAD = 12


class ListRows:
    """Values with their keys, headers and timestamps.

    Raises INVALID_REQUEST for what is not a list, and where one list is longer than another.
    """

    def __init__(
        self,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        headers: Sequence[HeadersLike] | None,
        timestamps_ms: int | Sequence[int] | None,
    ) -> None:
        require_list("values", values)
        if headers is not None and not isinstance(headers, (*SINGLE_VALUES, Mapping)):
            headers = [*headers]
        for name, given in (("keys", keys), ("headers", headers)):
            if given is not None:
                require_list(name, given)
                _require_length(name, given, len(values))
        self._values = values
        self._keys = keys
        self._headers: list[Headers] | None = None if headers is None else [*map(headers_of, headers)]
        self._timestamps_ms = timestamps_ms

    def read(self, config: ProducerConfig, now_ms: int, chunk_bytes: int) -> Iterator[Rows]:
        """The rows in chunks of about `chunk_bytes`, serialized. Raises INVALID_REQUEST for what is not bytes then."""
        timestamps = self._timestamps(now_ms)
        for start, end in self._chunks(chunk_bytes):
            values = _serialized("value", self._values[start:end], config.value_serializer)
            keys = None if self._keys is None else _serialized("key", self._keys[start:end], config.key_serializer)
            headers = None if self._headers is None else self._headers[start:end]
            try:
                yield rows_of(values, keys, headers, timestamps[start:end])
            except TypeError:  # something is like bytes, or nothing of the sort
                values = [bytes_of("value", value, None) for value in values]
                keys = None if keys is None else [bytes_of("key", key, None) for key in keys]
                yield rows_of(values, keys, headers, timestamps[start:end])

    def _timestamps(self, now_ms: int) -> Longs:
        timestamps, given = np.empty(len(self._values), np.int64), self._timestamps_ms
        try:
            if isinstance(given, Sized) and np.ndim(given):
                _require_length("timestamps_ms", given, len(timestamps))
            timestamps[:] = now_ms if given is None else given
        except (TypeError, ValueError, OverflowError) as error:
            message = f"timestamps_ms must be ms since the epoch, one or {len(timestamps)}: {error}"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message) from None
        if timestamps.min(initial=0) < 0:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"timestamps_ms must be 0 or more, not {timestamps.min()}")
        return timestamps

    def _chunks(self, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Runs of rows, by the size of the first value of each."""
        start, count = 0, len(self._values)
        while start < count:
            first = self._values[start]
            size = len(first) if isinstance(first, (bytes, bytearray, str)) else 0
            end = min(start + max(max_bytes // (size + ROW_OVERHEAD), 1), start + _MAX_CHUNK_ROWS, count)
            yield start, end
            start = end


def _require_length(name: str, given: Sized, value_count: int) -> None:
    if len(given) != value_count:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"there are {value_count} values and {len(given)} {name}")


def _serialized(name: str, given: Sequence[Any], serializer: Serializer | None) -> Sequence[Any]:
    if serializer is None:
        return given
    return [None if each is None else bytes_of(name, each, serializer) for each in given]
