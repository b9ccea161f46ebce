"""A log against a model of it: any order of appends, reads, cuts, deletions, stops and crashes."""

from __future__ import annotations

import bisect

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rayka.storage.format.batch import iter_headers
from rayka.storage.format.compression import Codec
from rayka.types import FileSlice
from tests.support.log_machine import LogMachine
from tests.support.logs import NOW_MS, batch, check_indexes, open_log
from tests.support.scale import examples

PRODUCERS = (-1, 100, 101)
values = st.lists(st.binary(max_size=60), min_size=1, max_size=4)
fractions = st.floats(0, 1)


class RecoveredLog(LogMachine):
    """The model: each batch that is in the log as (base offset, bytes, timestamps); what each producer sent."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, bytes, list[int]]] = []
        self.sent: dict[int, list[tuple[int, int, bytes]]] = {producer: [] for producer in PRODUCERS}
        self.known = dict.fromkeys(PRODUCERS, 0)
        self.start = self.high_watermark = self.flushed = 0

    @initialize(segment_bytes=st.integers(400, 2000), interval=st.integers(0, 400), index_bytes=st.integers(48, 300))
    def begin(self, segment_bytes: int, interval: int, index_bytes: int) -> None:
        self.config = {
            "internal_segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "segment_index_bytes": index_bytes,
            "retention_ms": -1,
            "file_delete_delay_ms": 0,
        }
        self.open()

    def open(self, **how: object) -> None:
        """Open the log again, with what the checkpoints would say."""
        self.log = open_log(
            self.directory,
            now_ms=self.now_ms,
            recovery_point=self.flushed,
            log_start_offset=self.start,
            high_watermark=self.high_watermark,
            **how,
            **self.config,
        )

    # -- what is done ---------------------------------------------------------------------------

    @rule(data=values, producer=st.sampled_from(PRODUCERS), step=st.integers(-3, 50), codec=st.sampled_from(Codec))
    def append(self, data: list[bytes], producer: int, step: int, codec: Codec) -> None:
        self.now_ms += step
        how = {}
        if producer >= 0:
            sent = self.sent[producer]
            how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sent[-1][1] if sent else 0}
        records = batch(*data, timestamp=self.now_ms, codec=codec, **how)
        info = self.log.append_as_leader(bytearray(records), 0, self.now_ms)
        assert (info.base_offset, info.last_offset, info.is_duplicate) == (self.end, self.end + len(data) - 1, False)
        if producer >= 0:
            self.known[producer] = min(self.known[producer] + 1, 5)
            self.sent[producer].append((self.end, how["base_sequence"] + len(data), bytes(records)))
        stamps = [self.now_ms + number for number in range(len(data))]
        self.batches.append((self.end, bytes(records), stamps))
        self.end += len(data)

    @rule(producer=st.sampled_from(PRODUCERS[1:]), back=st.integers(1, 5))
    def send_again(self, producer: int, back: int) -> None:
        back = min(back, self.known[producer])
        if back:
            sent = self.sent[producer][-back:]
            info = self.log.append_as_leader(bytearray(sent[0][2]), 0, self.now_ms)
            assert info.is_duplicate
            assert info.base_offset == sent[0][0]

    @rule(where=fractions)
    def advance_high_watermark(self, where: float) -> None:
        offset = self.high_watermark + round(where * (self.end - self.high_watermark))
        self.log.update_high_watermark(offset)
        self.high_watermark = offset

    @precondition(lambda self: self.batches)
    @rule(where=fractions)
    def truncate(self, where: float) -> None:
        number = round(where * (len(self.batches) - 1))
        offset = self.batches[number][0]
        self.log.truncate_to(offset)
        del self.batches[number:]
        for producer, sent in self.sent.items():
            self.sent[producer] = [one for one in sent if one[0] < offset]
        self.known = {producer: min(len(sent), 5) for producer, sent in self.sent.items()}
        self.end = offset
        self.start, self.flushed = min(self.start, offset), min(self.flushed, offset)
        self.high_watermark = min(self.high_watermark, offset)

    @rule(where=fractions)
    def delete_records(self, where: float) -> None:
        offset = self.start + round(where * (self.high_watermark - self.start))
        assert self.log.delete_records(offset) == offset
        self.start = offset

    @rule()
    def delete_old_segments(self) -> None:
        self.log.delete_old_segments(self.now_ms)

    @rule()
    def flush(self) -> None:
        job = self.log.begin_flush()
        job.run()
        self.log.finish_flush(job)
        assert self.log.recovery_point == self.end
        self.flushed = self.end

    @rule(same_boot=st.booleans())
    def kill(self, same_boot: bool) -> None:
        self.log.release()
        self.open(same_boot=same_boot)

    @rule()
    def restart(self) -> None:
        self.log.close(self.now_ms)
        check_indexes(self.directory)
        self.flushed = self.end
        self.open(clean_shutdown=True)

    # -- what must hold -------------------------------------------------------------------------

    @invariant()
    def offsets_are_in_order(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.high_watermark == max(self.high_watermark, self.start)
        log.validate_state()

    @rule(where=fractions, upper=fractions, max_bytes=st.integers(0, 3000))
    def read(self, where: float, upper: float, max_bytes: int) -> None:
        bounds = [base for base, _, _ in self.batches if base >= self.start] + [self.end]
        bound = bounds[round(upper * (len(bounds) - 1))]
        offset = self.start + round(where * (self.end - self.start))
        file_slice = self.log.read(offset, max_bytes, bound)
        if offset >= bound:
            assert file_slice is None
        else:
            assert file_slice is not None
            self._check_slice(file_slice, offset, bound, max_bytes)

    def _check_slice(self, file_slice: FileSlice, offset: int, bound: int, max_bytes: int) -> None:
        number = bisect.bisect_right([base for base, _, _ in self.batches], offset) - 1
        data = self.reader.read(file_slice)
        assert len(data) <= max(max_bytes, len(self.batches[number][1]))
        for position, header in iter_headers(data):
            base_offset, written, _ = self.batches[number]
            assert header.base_offset == base_offset < bound
            assert data[position + 16 : position + header.size_in_bytes] == written[16:]
            number += 1

    @rule()
    def read_everything(self) -> None:
        offset = self.start
        while (file_slice := self.log.read(offset, 700, self.end)) is not None:
            headers = list(iter_headers(self.reader.read(file_slice)))
            assert headers[0][1].base_offset <= offset
            offset = headers[-1][1].next_offset
        assert offset == self.end

    @rule(delta=st.integers(-5, 200))
    def find_a_timestamp(self, delta: int) -> None:
        wanted = NOW_MS + delta
        found = self.log.offset_for_timestamp(wanted)
        matches = [
            base + number
            for base, _, stamps in self.batches
            for number, stamp in enumerate(stamps)
            if stamp >= wanted and base + number >= self.start
        ]
        assert (None if found is None else found.offset) == (matches[0] if matches else None)


RecoveredLog.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestLog = RecoveredLog.TestCase
