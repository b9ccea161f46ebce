"""Compaction against a model: any appends, transactions, rolls, rounds of cleaning, power cuts and restarts."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.cleaner.plan import CleanerLimits
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.compression import Codec
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.records import Record, build_batch, read_batch
from tests.support.compaction import rounds
from tests.support.log_machine import LogMachine
from tests.support.logs import check_indexes, open_log
from tests.support.power_cut import PowerCut, PowerLost
from tests.support.scale import examples

RETENTION_MS = 1000
IDEMPOTENT, FIRST, SECOND = 100, 201, 202
keys = st.sampled_from([b"a", b"b", b"c", b"long key"])
values = st.one_of(st.none(), st.binary(max_size=12))
records = st.lists(st.tuples(keys, values), min_size=1, max_size=4)


class Fuse(PowerCut):
    """Stays off after a power cut until `crash`; what is there then is on the device."""

    def crash(self, chance: random.Random) -> None:
        super().crash(chance)
        self.cut_at = 0
        self._durable = {path: Path(path).read_bytes() for path in self._durable if os.path.exists(path)}

    def _step(self) -> None:
        self.calls += 1
        if 0 < self.cut_at <= self.calls:
            raise PowerLost


class Written(NamedTuple):
    """A record that was appended; `producer_id` is that of a transaction, else -1."""

    key: bytes
    value: bytes | None
    timestamp: int
    producer_id: int


class CleanerMachine(LogMachine):
    """The model: every record ever written by its offset, what became of transactions, and when tombstones were met."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[int, Written] = {}
        self.open_since: dict[int, list[int]] = {}
        self.aborted: set[int] = set()
        self.undecided: set[int] = set()
        self.sequences = {IDEMPOTENT: 0, FIRST: 0, SECOND: 0}
        self.met: dict[int, int] = {}
        self.cleaned_at = 0
        self.eligible_end = 0
        self.cleaned_offset: int | None = None

    @initialize(
        segment_bytes=st.integers(300, 1200),
        interval=st.integers(0, 300),
        buffer_bytes=st.integers(62, 700),
        map_slots=st.sampled_from([4, 7, 1000]),
        timestamp_type=st.sampled_from(["CreateTime", "LogAppendTime"]),
    )
    def begin(self, segment_bytes: int, interval: int, buffer_bytes: int, map_slots: int, timestamp_type: str) -> None:
        self.config = {
            "cleanup_policy": ("compact",),
            "internal_segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "delete_retention_ms": RETENTION_MS,
            "message_timestamp_type": timestamp_type,
            "file_delete_delay_ms": 0,
        }
        self.files = Fuse()
        self.limits = CleanerLimits(24 * map_slots, buffer_bytes, secret=(3, 4))
        self.open()

    def open(self, recovery_point: int = 0, **how: object) -> None:
        self.log = open_log(
            self.directory, files=self.files, now_ms=self.now_ms, recovery_point=recovery_point, **how, **self.config
        )
        self.log.update_high_watermark(self.log.log_end_offset)

    # -- what is done ---------------------------------------------------------------------------

    @rule(
        data=records, codec=st.sampled_from(Codec), step=st.integers(0, 400), producer=st.sampled_from([-1, IDEMPOTENT])
    )
    def append(self, data: list[tuple[bytes, bytes | None]], codec: Codec, step: int, producer: int) -> None:
        self.now_ms += step
        how = {}
        if producer >= 0:
            how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": self.sequences[producer]}
            self.sequences[producer] += len(data)
        self._append(data, -1, codec=codec, **how)

    @rule(data=records, producer=st.sampled_from([FIRST, SECOND]))
    def append_in_a_transaction(self, data: list[tuple[bytes, bytes | None]], producer: int) -> None:
        offsets = self._append(
            data, producer,
            producer_id=producer, producer_epoch=0, base_sequence=self.sequences[producer], is_transactional=True,
        )  # fmt: skip
        self.sequences[producer] += len(data)
        self.open_since.setdefault(producer, []).extend(offsets)
        self.undecided.update(offsets)

    def _append(self, data: list[tuple[bytes, bytes | None]], producer: int, **how: object) -> list[int]:
        batch = build_batch([Record(0, self.now_ms, key, value) for key, value in data], **how)
        info = self.log.append_as_leader(batch, 0, self.now_ms, origin_is_client=False)
        assert info.base_offset == self.end
        offsets = list(range(self.end, self.end + len(data)))
        for offset, (key, value) in zip(offsets, data, strict=True):
            self.written[offset] = Written(key, value, self.now_ms, producer)
        self.end += len(data)
        self.log.update_high_watermark(self.end)
        return offsets

    @rule(producer=st.sampled_from([FIRST, SECOND]), is_committed=st.booleans())
    def end_transaction(self, producer: int, is_committed: bool) -> None:
        offsets = self.open_since.pop(producer, [])
        kind = ControlType.COMMIT if is_committed else ControlType.ABORT
        marker = build_end_transaction_marker(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, now_ms=self.now_ms
        )
        self.log.append_as_leader(marker, 0, self.now_ms, origin_is_client=False)
        self.end += 1
        self.log.update_high_watermark(self.end)
        self.undecided.difference_update(offsets)
        if not is_committed:
            self.aborted.update(offsets)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(step=st.integers(0, 2 * RETENTION_MS))
    def clean(self, step: int) -> None:
        self.now_ms += step
        self._flush()
        for end in self._clean():
            if end is not None:
                self._check_complete(end.end_offset)
                self.cleaned_offset = end.end_offset
            self.check_records()

    @rule(step=st.integers(0, 2 * RETENTION_MS), cut_at=st.integers(1, 60), seed=st.integers(0, 99))
    def clean_until_the_power_fails(self, step: int, cut_at: int, seed: int) -> None:
        self.now_ms += step
        self._flush()
        recovery_point = self.log.recovery_point
        self.files.cut_at = self.files.calls + cut_at
        try:
            for end in self._clean():
                if end is not None:
                    self.cleaned_offset = end.end_offset
        except PowerLost:
            pass
        self.log.release()
        self.files.crash(random.Random(seed))
        producers = self._producers()
        self.open(recovery_point)
        assert self._producers() == producers

    def _clean(self) -> object:
        dirty_to = self.log.last_stable_offset
        for offset, record in self.written.items():
            if record.value is None and offset < dirty_to:
                self.met.setdefault(offset, self.now_ms)
        self.cleaned_at = self.now_ms
        self.eligible_end = max(self.eligible_end, dirty_to)
        try:
            yield from rounds(self.log, self.now_ms, self.files, cleaned_offset=self.cleaned_offset, limits=self.limits)
        except RaykaError as error:  # the map may be too small for one batch
            if error.code is not ErrorCode.INVALID_CONFIG:
                raise

    def _flush(self) -> None:
        self.log.flush()
        self.log.write_snapshots()

    @rule()
    def restart(self) -> None:
        producers = self._producers()
        self.log.close(self.now_ms)
        check_indexes(self.directory)
        self.open(self.end, clean_shutdown=True)
        assert self._producers() == producers

    def _producers(self) -> dict[int, tuple[int, int]]:
        """What a producer that is still known must be able to go on from."""
        return {
            producer_id: (entry.last_sequence, entry.current_txn_first_offset)
            for producer_id, entry in self.log._producers.entries.items()
            if entry.batches
        }

    # -- what must hold -------------------------------------------------------------------------

    @invariant()
    def offsets_stay(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (0, self.end)
        self.log.validate_state()

    @invariant()
    def check_records(self) -> None:
        everything = self._read(committed=False)
        for offset, record in everything.items():
            expected = self.written[offset]
            assert record == (expected.key, expected.value, expected.timestamp)
        assert everything.keys() >= {offset for offset in self.written if offset >= self.eligible_end}
        committed = self._read(committed=True)
        assert not committed.keys() & (self.aborted | self.undecided)
        last = self._last_offsets(self.log.last_stable_offset)
        may_be_gone = {offset for offset in self.met if self.met[offset] + RETENTION_MS <= self.cleaned_at}
        assert committed.keys() >= set(last.values()) - may_be_gone

    def _last_offsets(self, end: int) -> dict[bytes, int]:
        """The last offset of each key below `end` that was not aborted."""
        return {
            record.key: offset
            for offset, record in sorted(self.written.items())
            if offset < end and offset not in self.aborted
        }

    def _check_complete(self, end: int) -> None:
        """Below the end of a round each key is there at most once, and nothing aborted."""
        last = self._last_offsets(end)
        for offset, (key, _, _) in self._read(committed=False).items():
            assert offset >= end or last[key] == offset

    def _read(self, *, committed: bool) -> dict[int, tuple[bytes | None, bytes | None, int]]:
        log, offset = self.log, 0
        end = log.last_stable_offset if committed else log.high_watermark
        found = {}
        while (records := log.read(offset, 500, end)) is not None:
            data = self.reader.read(records)
            headers = list(iter_headers(data))
            aborted = log.aborted_transactions(offset, records) if committed else None
            for position, header in iter_visible(data, headers, aborted):
                for record in read_batch(data, position, header):
                    if offset <= record.offset < end:
                        found[record.offset] = (record.key, record.value, record.timestamp)
            offset = headers[-1][1].next_offset
        assert offset >= end
        return found


CleanerMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestCleaner = CleanerMachine.TestCase


def test_the_log_ends_with_a_batch_after_a_round_that_a_full_map_has_ended() -> None:
    machine = CleanerMachine()
    machine.begin(segment_bytes=387, interval=0, buffer_bytes=62, map_slots=4, timestamp_type="CreateTime")
    for data in ([(b"c", None)], [(b"a", None), (b"b", None), (b"a", None)], [(b"c", None), (b"a", None)]):
        machine.append_in_a_transaction(data=data, producer=FIRST)
    machine.end_transaction(is_committed=True, producer=FIRST)
    machine.end_transaction(is_committed=False, producer=FIRST)
    machine.roll()
    machine.clean(step=0)
    machine.clean(step=RETENTION_MS)
    machine.teardown()
