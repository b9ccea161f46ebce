"""Records that C code encodes one by one, and columns that are encoded together, are the same bytes."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from rayka.client.producer.filling import EncodedRecords, FillingRecords, RecordColumns
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.builder import append_records, max_record_size
from rayka.storage.format.records import Record
from tests.property.record_strategies import record_lists
from tests.support.ways import NATIVE, WAYS


@given(record_lists(min_size=1), st.integers(RECORD_BATCH_OVERHEAD, 20_000), st.integers(0, 5_000))
def test_records_of_a_batch_are_encoded_as_the_format_says(records: list[Record], limit: int, step: int) -> None:
    """As many as its limit lets in, which is for one record at least, and for no fewer if each is encoded at once."""
    counts = []
    for way in WAYS:
        filling: FillingRecords
        filling = EncodedRecords(limit, step) if way == NATIVE else RecordColumns(limit, step, threading.Lock())
        taken = []
        for record in records:
            _, timestamp, key, value, headers, _ = record
            size = max_record_size(key, value, headers)
            if filling.add(value, key, timestamp, headers, size) is None:
                break
            taken.append(record)
            assert filling.size <= filling.reserved <= max(limit, filling.size)
        assert len(taken) == len(filling) >= 1
        assert len(taken) == 1 or filling.size <= limit
        assert [filling.timestamp(index) for index in range(len(taken))] == [record.timestamp for record in taken]
        assert filling.max_timestamp == max(record.timestamp for record in taken)
        _, timestamps, keys, values, headers_of_all, _ = zip(*taken, strict=True)
        expected = append_records(values, keys, headers_of_all, timestamps)
        assert filling.encoded(False)[RECORD_BATCH_OVERHEAD:] == expected[RECORD_BATCH_OVERHEAD:]
        counts.append(len(taken))
    assert counts == sorted(counts)
