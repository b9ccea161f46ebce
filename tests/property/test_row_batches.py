"""Columns that C code encodes and columns that numba encodes are the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.client.native import encode_rows, measure_rows, native_records
from rayka.storage.columns.rows import Rows, rows_of, write_rows
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, seal
from rayka.storage.format.records import Record, encode_record
from tests.property.record_strategies import record_lists

__test__ = native_records is not None
BASE_OFFSET_BYTES = 8


def rows_from(records: list[Record]) -> Rows:
    values, keys = [record.value for record in records], [record.key for record in records]
    timestamps = np.array([record.timestamp for record in records], np.int64)
    return rows_of(values, keys, [record.headers for record in records], timestamps)


def large_rows(sizes: list[int]) -> Rows:
    values = [np.random.default_rng(size).bytes(size) for size in sizes]
    return rows_of(values, None, None, np.arange(len(sizes), dtype=np.int64))


def assert_same_batches(rows: Rows, limit: int) -> None:
    row = 0
    for expected, count in write_rows(rows, max_batch_size=limit):
        out = memoryview(bytearray(max(limit, len(expected))))
        end, size = encode_rows(rows, out, row)
        assert (end - row, size) == (count, len(expected))
        seal(out, 0, size)
        assert out[BASE_OFFSET_BYTES:size] == expected[BASE_OFFSET_BYTES:]
        row = end
    assert row == len(rows.timestamps)


@given(record_lists(min_size=1), st.integers(100, 20_000))
def test_batches_are_the_same(records: list[Record], limit: int) -> None:
    assert_same_batches(rows_from(records), limit)


@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 190, 191, 192, 255, 256, 300, 1_000, 3_000, 3_072, 6_200, 70_001])
def test_batches_of_every_length_are_the_same(size: int) -> None:
    for more in range(20):
        assert_same_batches(large_rows([size + more, 5, size]), 1 << 20)
    assert_same_batches(large_rows([size] * 40), 1 << 16)


@given(record_lists())
def test_rows_are_measured(records: list[Record]) -> None:
    rows = rows_from(records)
    largest, total, has_keys = measure_rows(rows)
    assert largest == rows.sizes().max(initial=0)
    assert rows.most_bytes(total) == rows.max_bytes()
    assert has_keys is any(record.key is not None for record in records)


def test_without_room_there_is_no_batch() -> None:
    rows = large_rows([10, 10])
    size = RECORD_BATCH_OVERHEAD + 1 + len(encode_record(0, 0, None, bytes(10), ()))
    assert encode_rows(rows, memoryview(bytearray(size - 1)), 0) == (0, RECORD_BATCH_OVERHEAD)
    assert encode_rows(rows, memoryview(bytearray(size)), 0) == (1, size)
    assert encode_rows(rows, memoryview(bytearray(size)), 2) == (2, RECORD_BATCH_OVERHEAD)


@pytest.mark.parametrize(
    "change",
    [
        {"values": ("positions", [0, -1])},
        {"values": ("positions", [0, 11])},
        {"values": ("positions", [0, 2**62])},
        {"values": ("lengths", [10, 2**62])},
        {"values": ("lengths", [10])},
        {"keys": ("lengths", [1, 1])},
        {"header_rows": [0, 0]},
        {"header_rows": [0, 0, 1]},
        {"header_rows": [0, -1, 0]},
        {"header_rows": [2, 1, 0]},
    ],
    ids=str,
)
def test_a_field_that_is_not_in_its_column_is_refused(change: dict[str, Any]) -> None:
    rows = large_rows([10, 10])
    rows = rows._replace(values=rows.values._replace(data=np.zeros(20, np.uint8), positions=np.array([0, 10])))
    encode_rows(rows, memoryview(bytearray(1000)), 0)
    for name, wrong in change.items():
        if isinstance(wrong, tuple):
            rows = rows._replace(**{name: getattr(rows, name)._replace(**{wrong[0]: np.array(wrong[1], np.int64)})})
        else:
            rows = rows._replace(**{name: np.array(wrong, np.int64)})
    with pytest.raises(ValueError, match="column"):
        encode_rows(rows, memoryview(bytearray(1000)), 0)


def test_wrong_rows_and_memory_are_refused() -> None:
    rows = large_rows([10])
    for memory, first_row in ((bytearray(60), 0), (bytearray(100), -1), (bytearray(100), 2)):
        with pytest.raises(ValueError, match="other lengths, or too little"):
            encode_rows(rows, memoryview(memory), first_row)
    with pytest.raises(BufferError):
        encode_rows(rows, memoryview(bytes(100)), 0)
