"""The records of a batch while it fills, by C code and by plain Python."""

from __future__ import annotations

import threading
import time

import pytest

from rayka.client.producer.filling import FillingRecords, new_records
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.builder import append_records, max_record_size
from tests.support.ways import WAYS, fill_by

LIMIT = 100_000
VALUE = b"value" * 20


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How batches are filled."""
    fill_by(request.param, monkeypatch)
    return str(request.param)


def begun(limit: int = LIMIT) -> FillingRecords:
    """A batch with one record."""
    records = new_records(limit, threading.Lock())
    assert add(records, b"first") == 0
    return records


def add(records: FillingRecords, value: bytes | None, timestamp: int = 7) -> int | None:
    return records.add(value, None, timestamp, (), max_record_size(None, value))


def test_records_get_consecutive_numbers_and_the_present_time() -> None:
    records, before = begun(), time.time_ns() // 1_000_000
    assert [records.append(VALUE, key) for key in (None, b"key", b"", None)] == [1, 2, 3, 4]
    after = time.time_ns() // 1_000_000
    times = [records.timestamp(index) for index in range(1, 5)]
    assert len(records) == 5
    assert records.timestamp(0) == 7
    assert before <= times[0] <= times[-1] <= after
    assert records.max_timestamp == times[-1]
    expected = append_records([b"first", *[VALUE] * 4], [None, None, b"key", b""], (), [7, *times])
    assert records.encoded(False)[RECORD_BATCH_OVERHEAD:] == expected[RECORD_BATCH_OVERHEAD:]


def test_an_append_takes_only_what_is_reserved_and_only_bytes() -> None:
    records = begun()
    while records.append(VALUE, None) is not None:
        assert records.size <= records.reserved
    count, reserved = len(records), records.reserved
    assert reserved - records.size < max_record_size(None, VALUE)
    assert add(records, VALUE) == count
    assert records.reserved > reserved
    for wrong in ("text", bytearray(b"bytes"), 7):
        assert records.append(wrong, None) is None
    assert len(records) == count + 1


def test_a_batch_is_full_at_its_limit_and_an_empty_one_takes_any_record() -> None:
    records = begun(limit=1000)
    while add(records, VALUE) is not None:
        assert records.size <= 1000
    assert add(records, VALUE * 1000) is None
    assert records.size > 1000 - max_record_size(None, VALUE)
    large = new_records(1000, threading.Lock())
    assert add(large, VALUE * 1000) == 0
    assert add(large, b"") is None
    assert large.append(b"", None) is None


def test_a_closed_batch_takes_nothing() -> None:
    records = begun()
    records.close()
    assert records.append(VALUE, None) is None
    assert len(records) == 1


def test_timestamps_stay_when_the_records_are_dropped() -> None:
    records = begun()
    assert not records.is_dropped
    records.drop()
    assert records.is_dropped
    assert records.timestamp(0) == 7
    assert records.append(VALUE, None) is None


def test_what_was_encoded_stays_as_long_as_somebody_looks_at_it() -> None:
    records = begun()
    records.append(VALUE, None)
    encoded = records.encoded(False)
    before = bytes(encoded)
    records.drop()
    others = [begun() for _ in range(100)]
    assert bytes(encoded) == before
    del encoded, others


def test_threads_append_while_the_batch_is_closed() -> None:
    records, indexes = begun(limit=10_000_000), list[int]()
    records.add(b"", None, 7, (), 5_000_000)

    def append() -> None:
        while (index := records.append(VALUE, None)) is not None:
            indexes.append(index)

    threads = [threading.Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(indexes) < 1000 and any(thread.is_alive() for thread in threads):
        time.sleep(0)
    records.close()
    for thread in threads:
        thread.join()
    assert sorted(indexes) == [*range(2, len(records))]
