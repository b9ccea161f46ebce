"""Rows of Arrow tables as record batches for the partitions of a topic, without a Python object for each row.

The columns are value, key, headers, timestamp and partition. A row without a partition goes where its key says, as in
Kafka; one without a key stays with those around it, up to a batch's worth of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rayka.client.producer.route import TopicRoute
from rayka.client.settings import ProducerConfig, Serializer
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, read_header

if TYPE_CHECKING:
    import pyarrow as pa

    from rayka.client.producer.partitioner import Partitioner

COLUMNS = ("value", "key", "headers", "timestamp", "partition")
_BATCH_BYTES = 1 << 20


class EncodedBatch(NamedTuple):
    """A record batch that is built, for one partition."""

    partition: int
    buffer: bytearray
    record_count: int


def encode_rows(
    columns: pa.RecordBatch | pa.Table,
    route: TopicRoute,
    config: ProducerConfig,
    partitioner: Partitioner | None,
    now_ms: int,
) -> Iterator[EncodedBatch]:
    """The rows as batches of at most a megabyte, or what the topic allows, in the order of the rows.

    value and key are binary or text, timestamp a timestamp or ms since the epoch, headers lists of key and value.
    Raises INVALID_RECORD for columns of other types, MESSAGE_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION.
    """
    import pyarrow as pa

    from rayka.storage.columns.write import write_columns

    limit = min(route.max_batch_size, _BATCH_BYTES)
    for part in columns.to_batches() if isinstance(columns, pa.Table) else [columns]:
        if not part.num_rows:
            continue
        rows = _serialized(part, config)
        sizes = _sizes(rows)
        _require_valid(rows, sizes, route)
        chosen = _choose(rows, route, partitioner)
        _choose_sticky(chosen, sizes, route, limit)
        for partition, of_partition in _by_partition(rows, chosen):
            written = write_columns(
                of_partition, now_ms=now_ms, max_batch_size=limit, codec=config.codec, level=config.compression_level
            )
            for buffer in written:
                yield EncodedBatch(partition, buffer, read_header(buffer, 0).record_count)


def _serialized(part: pa.RecordBatch, config: ProducerConfig) -> pa.RecordBatch:
    """The columns that count, after the serializers."""
    import pyarrow as pa

    names = [name for name in part.schema.names if name in COLUMNS]
    serializers: dict[str, Serializer | None] = {"key": config.key_serializer, "value": config.value_serializer}
    arrays = []
    for name in names:
        column, serializer = part.column(name), serializers.get(name)
        if serializer is not None:
            given = (None if value is None else serializer(value) for value in column.to_pylist())
            column = pa.array(given, pa.large_binary(), size=len(column))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names)


def _choose(rows: pa.RecordBatch, route: TopicRoute, partitioner: Partitioner | None) -> Any:
    """The partition of each row that is given, or that its key or the partitioner chooses; -1 for the others."""
    import numpy as np
    import pyarrow as pa

    from rayka.client.producer.key_hashes import choose_by_keys
    from rayka.storage.columns.write import binary_fields

    chosen = np.full(rows.num_rows, -1, np.int64)
    if "partition" in rows.schema.names:
        given = rows.column("partition").cast(pa.int64())
        chosen = given.fill_null(-1).to_numpy(zero_copy_only=False).copy()
        is_bad = (chosen >= route.partition_count) | (chosen < 0) & given.is_valid().to_numpy(zero_copy_only=False)
        if is_bad.any():
            route.choose(None, 0, int(chosen[is_bad.argmax()]), None)
    keys = rows.column("key") if "key" in rows.schema.names else None
    if partitioner is not None:
        for row in (chosen < 0).nonzero()[0].tolist():
            key = None if keys is None else keys[row].as_py()
            chosen[row] = route.choose(key, 0, None, partitioner)
    elif keys is not None:
        choose_by_keys(*binary_fields("key", keys), route.partition_count, chosen)
    return chosen


def _choose_sticky(chosen: Any, sizes: Any, route: TopicRoute, limit: int) -> None:
    """Rows that have neither partition nor key: a batch's worth of them to one partition."""
    import numpy as np

    (left,) = (chosen < 0).nonzero()
    batches = np.cumsum(sizes[left]) // limit
    for number in np.unique(batches).tolist():
        chosen[left[batches == number]] = route.choose(None, limit, None, None)


def _by_partition(rows: pa.RecordBatch, chosen: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    import numpy as np
    import pyarrow as pa

    partitions, counts = np.unique(chosen, return_counts=True)
    if len(partitions) == 1:
        yield int(partitions[0]), rows
        return
    ordered = rows.take(pa.array(np.argsort(chosen, kind="stable")))
    start = 0
    for partition, count in zip(partitions.tolist(), counts.tolist(), strict=True):
        yield partition, ordered.slice(start, count)
        start += count


def _sizes(rows: pa.RecordBatch) -> Any:
    """The bytes of each row's key and value."""
    import numpy as np

    from rayka.storage.columns.write import binary_fields

    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value"):
        if name in rows.schema.names:
            sizes += np.maximum(binary_fields(name, rows.column(name)).lengths, 0)
    return sizes


def _require_valid(rows: pa.RecordBatch, sizes: Any, route: TopicRoute) -> None:
    """Refuse a record that can't be in a batch of the topic, and timestamps before the epoch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    largest = int(sizes.max()) + RECORD_BATCH_OVERHEAD
    if largest > route.max_batch_size:
        limit = f"topic {route.topic} has max.message.bytes={route.max_batch_size}"
        raise RaykaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch with one of the records has {largest} bytes, and {limit}"
        )
    if "timestamp" in rows.schema.names and pa.types.is_integer(rows.column("timestamp").type):
        earliest = pc.min(rows.column("timestamp")).as_py()
        if earliest is not None and earliest < 0:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"timestamp must be ms since the epoch, not {earliest}")
