"""What `poll` gives may be handed to several threads, before it is decoded."""

from __future__ import annotations

import pytest

from rayka.client.compiled import Compiled
from rayka.client.consumer import decoding
from rayka.client.consumer.decoding import UndecodedRecords
from rayka.client.consumer.sequence import MadeRecords
from rayka.storage.format.batch import BatchHeader, iter_headers
from rayka.storage.format.records import Record, build_batch
from rayka.types import TopicPartition

PARTITION = TopicPartition("events", 0)


class LookedAtMeanwhile(UndecodedRecords):
    """Another thread looks at the last record whenever this one is about to use what it has decoded."""

    is_looking = False

    def _count(self, header: BatchHeader) -> int:
        if hasattr(self, "_decoded") and not self.is_looking:
            self.is_looking = True
            self.records(len(self) - 1, len(self))
            self.is_looking = False
        return super()._count(header)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> LookedAtMeanwhile:
    """Two batches of two records, read by plain Python."""
    monkeypatch.setattr(decoding, "_compiled", Compiled("no such module", "", lambda _: None))
    batches = [build_batch([Record(0, 0, b"", b"1"), Record(1, 0, b"", b"2")], base_offset=first) for first in (0, 2)]
    data = memoryview(b"".join(batches))
    return LookedAtMeanwhile(data, list(iter_headers(data)), 0, PARTITION)


def test_a_thread_gets_its_own_records_while_another_looks_at_others(records: LookedAtMeanwhile) -> None:
    assert [record.offset for record in records.records(0, 4)] == [0, 1, 2, 3]
    assert [record.offset for record in records.records(0, 2)] == [0, 1]


def test_plain_python_continues_while_another_thread_loads_compiled_code(records: LookedAtMeanwhile) -> None:
    made = MadeRecords(records.records(0, 4))
    again = LookedAtMeanwhile(records._data, records._batches, 0, PARTITION)
    decode = again._decode

    def decode_later(*arguments: object) -> object:
        decoding._compiled.function = lambda *_: made
        again.records(3, 4)
        return decode(*arguments)  # type: ignore[arg-type]

    again._decode = decode_later  # type: ignore
    assert [record.offset for record in again.records(0, 4)] == [0, 1, 2, 3]
    assert again._located is made
