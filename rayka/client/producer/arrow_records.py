"""Rows of Arrow batches as records of a topic. The columns are value, key, headers, timestamp and partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rayka.client.producer.producer import Producer
from rayka.errors import ErrorCode, RaykaError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("value", "key", "headers", "timestamp", "partition")
_IN_FLIGHT = 16_384


def send(producer: Producer, topic: str, batch: pa.RecordBatch | pa.Table) -> int:
    """Send the rows and wait until all are acknowledged; gives their number. Raises the first error.

    value and key are binary or strings, timestamp a timestamp or ms since the epoch, headers lists of key and value.
    Raises INVALID_REQUEST for columns of other types.
    """
    futures: list[Any] = []
    for row in _rows(batch):
        futures.append(producer.send(topic, **row))
        if len(futures) >= _IN_FLIGHT:
            _settle(futures)
    _settle(futures)
    return int(batch.num_rows)


def _settle(futures: list[Any]) -> None:
    for future in futures:
        future.result()
    futures.clear()


def _rows(batch: pa.RecordBatch | pa.Table) -> Iterator[dict[str, Any]]:
    columns = {name: _plain(name, batch.column(name)) for name in batch.schema.names if name in COLUMNS}
    if "timestamp" in columns:
        columns["timestamp_ms"] = columns.pop("timestamp")
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _plain(name: str, column: Any) -> list[Any]:
    import pyarrow as pa

    if name == "headers":
        return [_headers(headers) for headers in column.to_pylist()]
    try:
        if name in ("key", "value"):
            column = column.cast(pa.binary())
        elif name == "timestamp" and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"column {name} of type {column.type}: {error}") from error
    plain: list[Any] = column.to_pylist()
    return plain


def _headers(given: Any) -> list[tuple[str, bytes | None]] | None:
    if given is None:
        return None
    try:
        return [(header["key"], header["value"]) for header in given]
    except (TypeError, KeyError):
        message = f"headers must be a list of structs of key and value, not {given!r}"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message) from None
