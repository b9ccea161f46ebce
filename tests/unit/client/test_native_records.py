"""What C code makes of columns, also of wrong ones. Where it is not compiled there is nothing to test."""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from rayka.client.consumer.records import ConsumerRecord
from rayka.client.native import native_records
from rayka.types import TimestampType

__test__ = native_records is not None
native: Any = native_records
TOPIC, PARTITION = "events" * 2, 70_000
DATA = np.arange(200, dtype=np.uint8)


def columns(**changes: Any) -> tuple[Any, ...]:
    """Three records: a null key and a value, a key and a null value, both empty."""
    of_records = {
        "data": DATA,
        "offsets": np.array([5, 6, 2**40], np.int64),
        "timestamps": np.array([-1, 0, 2**41], np.int64),
        "key_positions": np.array([0, 10, 200], np.int32),
        "key_lengths": np.array([-1, 2, 0], np.int32),
        "value_positions": np.array([198, 0, 0], np.int32),
        "value_lengths": np.array([2, -1, 0], np.int32),
    }
    return tuple({**of_records, **changes}.values())


def made(given: tuple[Any, ...], start: int = 0, end: int = 3, max_bytes: int = 1000) -> list[ConsumerRecord]:
    common = ConsumerRecord, TOPIC, PARTITION, TimestampType.CREATE_TIME
    return native.make_records(common, given, start, end, max_bytes)  # type: ignore[no-any-return]


def test_records_are_what_the_columns_say() -> None:
    records = made(columns())
    common = TOPIC, PARTITION
    create_time = TimestampType.CREATE_TIME
    assert records == [
        (*common, 5, -1, create_time, None, bytes([198, 199]), ()),
        (*common, 6, 0, create_time, bytes([10, 11]), None, ()),
        (*common, 2**40, 2**41, create_time, b"", b"", ()),
    ]
    assert {type(record) for record in records} == {ConsumerRecord}
    assert made(columns(), 1, 2) == records[1:2]
    assert made(columns(), 2, 2) == []


def test_records_are_made_up_to_a_number_of_bytes() -> None:
    assert len(made(columns(), max_bytes=1)) == 1
    assert len(made(columns(), max_bytes=2)) == 2 + 0
    assert len(made(columns(), max_bytes=4)) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"value_positions": np.array([199, 0, 0], np.int32)},
        {"value_positions": np.array([-1, 0, 0], np.int32)},
        {"key_lengths": np.array([0, 2**31 - 1, 0], np.int32)},
        {"key_positions": np.array([0, 0, 201], np.int32)},
        {"offsets": np.array([5, 6], np.int64)},
        {"value_lengths": np.array([1], np.int32)},
        {"data": np.empty(0, np.uint8)},
    ],
)
def test_nothing_outside_of_the_columns_is_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"outside the data|there are"):
        made(columns(**wrong))


def test_wrong_arguments_are_refused() -> None:
    common = ConsumerRecord, TOPIC, PARTITION, None
    for wrong in (
        (common, columns(data=7), 0, 3, 1),
        (common, columns()[1:], 0, 3, 1),
        ((7, *common[1:]), columns(), 0, 3, 1),
        ((list, *common[1:]), columns(), 0, 3, 1),
    ):
        with pytest.raises(TypeError):
            native.make_records(*wrong)
    with pytest.raises(ValueError, match="from -1"):
        made(columns(), -1)


def require_nothing_left(work: Callable[[], None], shared: Sequence[object]) -> None:
    """The work leaves no memory allocated, and no reference to what it shares."""
    tracemalloc.start()
    try:
        work()  # makes what stays
        counts, (before, _) = [sys.getrefcount(each) for each in shared], tracemalloc.get_traced_memory()
        work()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    for each, count in zip(shared, counts, strict=True):
        assert abs(sys.getrefcount(each) - count) < 100


def test_records_leave_no_memory_and_no_references() -> None:
    given, broken = columns(), columns(value_positions=np.array([0, 0, 0], np.int32), data=np.empty(1, np.uint8))

    def work() -> None:
        for _ in range(1000):
            made(given)
            with contextlib.suppress(ValueError):
                made(broken)

    require_nothing_left(work, (TOPIC, PARTITION, TimestampType.CREATE_TIME, ConsumerRecord, (), None, DATA))


def test_builders_leave_no_memory_and_no_references() -> None:
    value = b"value" * 10

    def work() -> None:
        for _ in range(300):
            builder = native.RecordsBuilder(100_000, 5_000)
            builder.put(value, None, 7, b"")
            while builder.append(value, value) is not None:
                pass
            assert len(builder) > 40
            builder.put(value, value, 2**40, value)
            view = memoryview(builder)
            builder.drop()
            assert len(view) == builder.size
            builder.put(value, None, 7, b"")

    require_nothing_left(work, (value, None, native.RecordsBuilder))


def test_a_builder_refuses_wrong_arguments() -> None:
    builder = native.RecordsBuilder(1000, 100)
    for wrong in ((b"", b""), ("", None, 0, b""), (b"", 7, 0, b""), (b"", None, "0", b""), (b"", None, 0, None)):
        with pytest.raises(TypeError):
            builder.put(*wrong)
    with pytest.raises(OverflowError):
        builder.put(b"", None, 2**63, b"")
    with pytest.raises(TypeError):
        builder.append(b"")
    with pytest.raises(BufferError):
        memoryview(builder)
    for index in (0, -1):
        with pytest.raises(IndexError):
            builder.timestamp(index)
    assert len(builder) == 0
    assert builder.put(b"", None, 0, b"") == 0


def test_items_that_nothing_keeps_alive_are_refused() -> None:
    """A list may change while Python code runs, and another sequence may make its items anew each time."""
    common = ConsumerRecord, TOPIC, PARTITION, None
    for wrong in ((list(common), columns(), 0, 3, 1), (common, list(columns()), 0, 3, 1)):
        with pytest.raises(TypeError, match="tuple"):
            native.make_records(*wrong)


def test_no_record_is_seen_before_it_is_whole() -> None:
    """Python code that the garbage collector calls sees all objects, and to look at a half-made tuple is a crash."""

    class Made(NamedTuple):
        topic: str

    seen: list[int] = []

    def look(*_: object) -> None:
        seen.append(sum(type(each) is Made for each in gc.get_objects(0)))

    broken = columns(value_positions=np.array([0, 0, 201], np.int32))
    threshold = gc.get_threshold()
    gc.callbacks.append(look)
    try:
        raise KeyError  # an error meanwhile is chained to it, and so made at once, which may start a collection
    except KeyError:
        gc.set_threshold(1)
        with contextlib.suppress(ValueError):
            native.make_records((Made, TOPIC, PARTITION, None), broken, 2, 3, 1)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(look)
    assert set(seen) <= {0}


def test_columns_may_begin_at_any_address() -> None:
    moved = [memoryview(b"-" + np.asarray(each).tobytes())[1:] for each in columns()]
    assert made(tuple(moved)) == made(columns())


def test_a_batch_of_two_gigabytes_is_refused() -> None:
    for wrong in ((-1, 0), (0, -1), (2**31, 0), (0, 2**31), (2**63 - 1, 2**63 - 1)):
        with pytest.raises(ValueError, match="from 0 up to"):
            native.RecordsBuilder(*wrong)
    builder, part = native.RecordsBuilder(2**31 - 1, 0), bytes(2**31 // 3 + 1)
    with pytest.raises(OverflowError, match="a batch of"):
        builder.put(part, part, 0, part)
    assert (len(builder), builder.size, builder.reserved) == (0, 61, 0)
