"""Rows as record batches for the partitions of a topic, without a Python object for each row.

A row without a partition goes where its key says, as in Kafka; one without a key stays with those around it, up to a
batch's worth of bytes. Importing this module imports numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rayka.client.native import encode_rows, measure_rows, native_records
from rayka.client.producer.key_hashes import choose_by_keys
from rayka.client.producer.lists import ROW_OVERHEAD
from rayka.client.producer.partitioner import Partitioner
from rayka.client.producer.route import Route
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import Longs
from rayka.storage.columns.rows import Rows, room_for, write_rows
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, seal
from rayka.storage.format.compression import Codec

BATCH_BYTES = 1 << 20
_MAX_CHUNK_BATCHES = 8
is_native = native_records is not None
"""Whether C code encodes what is not compressed; else numba does."""


class EncodedBatch(NamedTuple):
    """A record batch that is built, for one partition."""

    partition: int
    buffer: bytearray | memoryview
    record_count: int


class RowEncoder:
    """Turns rows into the batches of a topic, of at most a megabyte or what the topic allows, in their order."""

    def __init__(
        self,
        route: Route,
        config: ProducerConfig,
        partitioner: Partitioner | None,
        take_memory: Callable[[int], memoryview | None] = lambda _: None,
    ) -> None:
        self._take_memory = take_memory
        self._route = route
        self._config = config
        self._partitioner = partitioner
        self._limit = min(route.max_batch_size, BATCH_BYTES)
        self._is_native = is_native and config.codec is Codec.NONE

    def chunk_bytes(self, is_together: bool) -> int:
        """How much is handled at a time: so many batches, one for each partition where the rows do not stay together.

        Of rows that do, numba encodes one batch at a time, so that it is still in the processor's cache for the CRC.
        """
        if is_together:
            return self._limit * (_MAX_CHUNK_BATCHES if self._is_native else 1)
        return self._limit * min(self._route.partition_count, _MAX_CHUNK_BATCHES)

    def encode(self, rows: Rows, partitions: Longs | int | None = None) -> Iterator[EncodedBatch]:
        """The batches of these rows.

        `partitions` is one for all or has that of each row, -1 where the key or the partitioner chooses.
        Raises MESSAGE_TOO_LARGE before the first batch.
        """
        if self._is_native:
            largest, total, has_keys = measure_rows(rows)
            self._require_fits(largest)
            if isinstance(partitions, int) or (partitions is None and not has_keys and self._partitioner is None):
                yield from self._write_natively(partitions, rows, rows.most_bytes(total))
                return
        sizes = rows.sizes()
        self._require_fits(int(sizes.max(initial=0)))
        has_keys = self._partitioner is not None or bool((rows.keys.lengths >= 0).any())
        is_together = isinstance(partitions, int) or (partitions is None and not has_keys)
        for start, end in _chunks(sizes, self.chunk_bytes(is_together)):
            chunk, of_chunk = rows.slice(start, end), sizes[start:end]
            if isinstance(partitions, int):
                yield from self._write(partitions, chunk)
            elif is_together:
                yield from self._write(self._route.choose(None, int(of_chunk.sum()), None, None), chunk)
            else:
                chosen = np.full(end - start, -1, np.int64) if partitions is None else partitions[start:end].copy()
                yield from self._encode_by_partition(chunk, chosen, of_chunk)

    def _encode_by_partition(self, rows: Rows, chosen: Longs, sizes: Longs) -> Iterator[EncodedBatch]:
        self._choose(rows, chosen)
        self._choose_sticky(chosen, sizes)
        for partition, numbers in _by_partition(chosen):
            yield from self._write(partition, rows if numbers is None else rows.take(numbers))

    def _write_natively(self, partition: int | None, rows: Rows, left: int) -> Iterator[EncodedBatch]:
        """Batches that are as full as possible, for one partition, or each for one without a key.

        The records take at most `left` bytes.
        """
        row, count = 0, len(rows.timestamps)
        while row < count:
            buffer: bytearray | memoryview
            buffer = room_for(min(self._limit, RECORD_BATCH_OVERHEAD + left), self._take_memory)
            end, size = encode_rows(rows, buffer, row)
            if end > row:
                buffer = buffer[:size]
                seal(buffer, 0, size)
            else:  # a record that is larger than a batch
                end = row + 1
                ((buffer, _),) = write_rows(rows.slice(row, end), max_batch_size=self._limit)
            chosen = self._route.choose(None, len(buffer), None, None) if partition is None else partition
            yield EncodedBatch(chosen, buffer, end - row)
            left -= len(buffer) - RECORD_BATCH_OVERHEAD
            row = end

    def _write(self, partition: int, rows: Rows) -> Iterator[EncodedBatch]:
        if self._is_native:
            return self._write_natively(partition, rows, rows.max_bytes())
        config = self._config
        written = write_rows(
            rows,
            max_batch_size=self._limit,
            codec=config.codec,
            level=config.compression_level,
            take_memory=self._take_memory,
        )
        return (EncodedBatch(partition, buffer, count) for buffer, count in written)

    def _choose(self, rows: Rows, chosen: Longs) -> None:
        """Set the partitions that the keys or the partitioner choose; -1 stays for the others."""
        if self._partitioner is None:
            choose_by_keys(*rows.keys, self._route.partition_count, chosen)
            return
        for row in (chosen < 0).nonzero()[0].tolist():
            chosen[row] = self._route.choose(rows.key(row), 0, None, self._partitioner)

    def _choose_sticky(self, chosen: Longs, sizes: Longs) -> None:
        """Rows that have neither partition nor key: a batch's worth of them to one partition."""
        (left,) = (chosen < 0).nonzero()
        batches = np.cumsum(sizes[left]) // self._limit
        for number in np.unique(batches).tolist():
            chosen[left[batches == number]] = self._route.choose(None, self._limit, None, None)

    def _require_fits(self, largest: int) -> None:
        largest += RECORD_BATCH_OVERHEAD
        if largest > self._route.max_batch_size:
            limit = f"topic {self._route.topic} has max.message.bytes={self._route.max_batch_size}"
            raise RaykaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch with only the largest record has {largest} bytes, but {limit}"
            )


def _chunks(sizes: Longs, max_bytes: int) -> Iterator[tuple[int, int]]:
    """The rows in runs of about `max_bytes`, so that what was encoded last is still in the processor's cache."""
    ends = np.cumsum(sizes + ROW_OVERHEAD)
    start, rows = 0, len(sizes)
    while start < rows:
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + max_bytes, "right")), start + 1)
        yield start, end
        start = end


def _by_partition(chosen: Any) -> Iterator[tuple[int, Longs | None]]:
    """The numbers of the rows of each partition, in their order; None for all of them."""
    partitions, counts = np.unique(chosen, return_counts=True)
    if len(partitions) == 1:
        yield int(partitions[0]), None
        return
    ordered, start = np.argsort(chosen, kind="stable"), 0
    for partition, count in zip(partitions.tolist(), counts.tolist(), strict=True):
        yield partition, ordered[start : start + count]
        start += count
