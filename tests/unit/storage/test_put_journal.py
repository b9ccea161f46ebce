"""Put journals: what a program writes, its leader reads once and in order, whoever dies."""

from __future__ import annotations

import mmap
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.rows import fields_of
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import read_header, validate
from rayka.storage.format.pieces import Pieces
from rayka.storage.format.records import read_records
from rayka.storage.journal import writer
from rayka.storage.journal.large import LargeRecord
from rayka.storage.journal.layout import (
    CAPACITY,
    DRAINED,
    FRAME,
    HEADER_BYTES,
    JUMPED,
    LARGE_CAPACITY,
    MOST_FRAME_BYTES,
    MOST_FRAME_RECORDS,
    MOST_LARGE_RECORD_BYTES,
    NO_JUMP,
    SEQUENCE_MASK,
    SIZE,
    STATE,
    WORD,
    WRITTEN,
    JournalState,
    frames_of,
)
from rayka.storage.journal.reader import Journal
from rayka.storage.journal.records import JournalRecords
from rayka.storage.journal.writer import JournalWriter

TOPIC_ID = uuid.UUID(int=7)
PRODUCER_ID = 4711
LARGE = 200 << 10


class JournalFile:
    """A journal's file, its writer, and the log to which its leader appends."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        self.files = RealFiles()
        self.descriptor = self.files.open(str(path), create=True)
        self.leader = Journal.create(self.files, self.descriptor, PRODUCER_ID, TOPIC_ID, capacity)
        self.mapping = mmap.mmap(self.descriptor, HEADER_BYTES)
        self.writer = JournalWriter(self.write, memoryview(self.mapping).cast("q"))
        self.put: list[bytes] = []
        self.log: list[bytes] = []
        self.bytes_written = 0

    def write(self, data: Sequence[bytes], position: int) -> int:
        self.bytes_written += sum(map(len, data))
        return os.pwritev(self.descriptor, data, position)

    def write_records(self, records: list[bytes]) -> int:
        count = self.writer.write(records)
        self.put += records[:count]
        return count

    def append_next(self) -> JournalRecords | LargeRecord | None:
        """What the leader does up to its append; `drained` comes afterwards."""
        records = self.leader.read()
        if records is not None:
            assert records.first_number == len(self.log)
            self.log += values_of(records)
        return records

    def drain(self) -> None:
        while (records := self.append_next()) is not None:
            self.leader.drained(records)

    def restart_leader(self) -> None:
        leader = Journal.open(self.files, self.descriptor)
        assert leader is not None
        leader.follow_log((len(self.log) - 1) & SEQUENCE_MASK if self.log else None)
        self.leader = leader

    def close(self) -> None:
        self.files.close(self.descriptor)


def values_of(records: JournalRecords | LargeRecord) -> list[bytes]:
    if isinstance(records, LargeRecord):
        batch = records.sealed(PRODUCER_ID, 5)
        validate(batch, 0, read_header(batch))
        return [record.value or b"" for record in read_records(batch)]
    data, positions, lengths = records.values
    return [data[start : start + length].tobytes() for start, length in zip(positions, lengths, strict=True)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalFile]:
    file = JournalFile(tmp_path / "1.journal")
    yield file
    file.close()


def test_the_leader_reads_what_was_written(journal: JournalFile) -> None:
    journal.write_records([b"one"])
    journal.write_records([b"two", b"", b"four"])
    journal.drain()
    assert journal.log == [b"one", b"two", b"", b"four"]
    assert journal.writer.is_drained(journal.writer.end)


def test_many_records_are_read_together(journal: JournalFile) -> None:
    for number in range(1000):
        journal.write_records([b"%d" % number])
    records = journal.leader.read()
    assert records is not None
    assert records.record_count == 1000


def test_frames_hold_a_bounded_number_of_records_and_bytes() -> None:
    many = list(frames_of(0, [b"x"] * (2 * MOST_FRAME_RECORDS + 1)))
    assert [len(frame.records) for frame in many] == [MOST_FRAME_RECORDS, MOST_FRAME_RECORDS, 1]
    large = list(frames_of(0, [b"x" * (MOST_FRAME_BYTES // 3)] * 5))
    assert [len(frame.records) for frame in large] == [2, 2, 1]


def fill(journal: JournalFile, record: bytes) -> int:
    count = 0
    while journal.write_records([record]):
        count += 1
    return count


def test_a_full_journal_takes_more_when_the_leader_has_read_what_is_in_its_place(journal: JournalFile) -> None:
    """The leader is not left without frames until the program wakes."""
    size, record = LARGE + FRAME.size, b"x" * LARGE
    count = fill(journal, record)
    assert count == CAPACITY // size
    for _ in range(3 * count):
        assert journal.write_records([record]) == 0
        first = journal.append_next()
        assert first is not None
        journal.leader.drained(first)
        assert fill(journal, record) in (0, first.record_count)
    assert len(journal.put) > 3 * count
    journal.drain()
    assert journal.log == journal.put


def test_a_list_begins_again_when_everything_is_read(journal: JournalFile) -> None:
    fill(journal, b"x" * LARGE)
    for _ in range(3):
        first = journal.append_next()
        assert first is not None
        journal.leader.drained(first)
        assert journal.write_records([b"y" * LARGE] * 2) == 0
    assert journal.write_records([b"z" * LARGE]) == 1
    assert journal.write_records([b"y" * LARGE] * 2) > 0, "behind the beginning"
    journal.drain()
    assert journal.log == journal.put


def test_a_frame_that_is_larger_than_what_was_read_waits_for_more(journal: JournalFile) -> None:
    journal.write_records([b"x" * 100])
    fill(journal, b"x" * LARGE)
    rest = CAPACITY - journal.leader.written() - FRAME.size
    assert journal.write_records([b"y" * rest]) == 1
    os.pwrite(journal.descriptor, (100 + FRAME.size).to_bytes(8, "little"), DRAINED)
    assert journal.write_records([b"z" * 101]) == 0
    assert journal.write_records([b"z" * 100]) == 1
    assert journal.write_records([b"z"]) == 0


def test_a_frame_as_large_as_the_journal_goes_over_what_was_read(journal: JournalFile) -> None:
    for size in (100, CAPACITY - FRAME.size, 1, CAPACITY - FRAME.size, CAPACITY - FRAME.size - 1, 5):
        assert journal.write_records([b"x" * size]) == 1
        journal.drain()
    assert journal.log == journal.put


def test_a_program_of_an_earlier_version_has_no_jumps(journal: JournalFile) -> None:
    """It does not know the word, and goes on at the beginning when everything is read; so does one whose leader is."""
    for word in (NO_JUMP, 0):
        os.pwrite(journal.descriptor, word.to_bytes(8, "little", signed=True), JUMPED)
        journal.writer._may_jump = False
        fill(journal, b"x" * LARGE)
        first = journal.append_next()
        assert first is not None
        journal.leader.drained(first)
        assert journal.write_records([b"y" * LARGE]) == 0
        journal.drain()
        assert journal.write_records([b"y" * LARGE] * 3) == 3
        journal.restart_leader()
        journal.drain()
        assert journal.log == journal.put
    assert not JournalWriter(journal.write, memoryview(journal.mapping).cast("q"))._may_jump


def test_a_list_that_does_not_fit_is_written_in_part(journal: JournalFile) -> None:
    records = [b"x" * LARGE] * 30
    count = journal.write_records(records)
    assert 0 < count < 30
    journal.drain()
    assert journal.write_records(records[count:]) == 30 - count
    journal.drain()
    assert journal.log == records


def test_a_leader_that_died_between_append_and_mark_appends_nothing_twice(journal: JournalFile) -> None:
    journal.write_records([b"a", b"b"])
    assert journal.append_next() is not None
    journal.write_records([b"c"])
    journal.restart_leader()
    journal.drain()
    assert journal.log == [b"a", b"b", b"c"]


def test_a_leader_that_died_within_a_frame_goes_on_in_it(journal: JournalFile) -> None:
    journal.write_records([b"a", b"b", b"c"])
    journal.log = [b"a", b"b"]
    journal.restart_leader()
    records = journal.append_next()
    assert records is not None
    assert (records.base_sequence, values_of(records)) == (2, [b"c"])


def test_a_log_that_a_power_cut_made_shorter_is_behind(journal: JournalFile) -> None:
    journal.write_records([b"a", b"b"])
    journal.drain()
    journal.write_records([b"c"])
    leader = Journal.open(journal.files, journal.descriptor)
    assert leader is not None
    leader.follow_log(0)
    assert leader.is_behind
    records = leader.read()
    assert records is not None
    assert values_of(records) == [b"c"]


def test_a_log_that_forgot_the_producer_goes_on_after_the_mark(journal: JournalFile) -> None:
    journal.write_records([b"a"])
    journal.drain()
    journal.write_records([b"b"])
    leader = Journal.open(journal.files, journal.descriptor)
    assert leader is not None
    leader.follow_log(None)
    records = leader.read()
    assert records is not None
    assert (leader.is_behind, records.first_number, values_of(records)) == (False, 1, [b"b"])


def test_sequence_numbers_go_on_at_0_after_the_largest(journal: JournalFile) -> None:
    leader = Journal.create(journal.files, journal.descriptor, PRODUCER_ID, TOPIC_ID)
    leader.drained(JournalRecords(fields_of([b""]), SEQUENCE_MASK - 1, 0))
    again = Journal.open(journal.files, journal.descriptor)
    assert again is not None
    again.follow_log(SEQUENCE_MASK)
    assert not again.is_behind
    assert JournalRecords(fields_of([b""]), SEQUENCE_MASK + 1, 0).base_sequence == 0


def test_a_damaged_frame_is_an_error(journal: JournalFile) -> None:
    journal.write_records([b"a" * 100])
    os.pwrite(journal.descriptor, b"?", HEADER_BYTES + 50)
    with pytest.raises(RaykaError) as raised:
        journal.leader.read()
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("position", range(20))
def test_a_damaged_header_of_a_frame_is_an_error(journal: JournalFile, position: int) -> None:
    journal.write_records([b"a" * 100, b"b"])
    for byte in (b"\0", b"\x01", b"\x7f", b"\xff"):
        before = os.pread(journal.descriptor, 1, HEADER_BYTES + position)
        if before == byte:
            continue
        os.pwrite(journal.descriptor, byte, HEADER_BYTES + position)
        with pytest.raises(RaykaError):
            journal.leader.read()
        os.pwrite(journal.descriptor, before, HEADER_BYTES + position)


@pytest.mark.parametrize("place", range(DRAINED, DRAINED + 2 * WORD))
def test_damage_of_what_is_drained_is_an_error(journal: JournalFile, place: int) -> None:
    """The journal would be removed if it counted as read."""
    journal.write_records([b"a"])
    journal.drain()
    journal.write_records([b"b"])
    before = os.pread(journal.descriptor, 1, place)
    for bit in range(8):
        os.pwrite(journal.descriptor, bytes([before[0] ^ 1 << bit]), place)
        journal.restart_leader()
        assert journal.leader.has_more()
        with pytest.raises(RaykaError):
            journal.leader.read()


@pytest.mark.parametrize("place", range(STATE, STATE + 3 * WORD))
def test_a_damaged_state_does_not_read_as_closed(journal: JournalFile, place: int) -> None:
    """The next leader removes a closed journal, with what the log does not have."""
    for state in (None, JournalState.OPEN, JournalState.CLOSING):
        if state is not None:
            journal.leader.set_state(state)
        before = os.pread(journal.descriptor, 1, place)
        for bit in range(8):
            os.pwrite(journal.descriptor, bytes([before[0] ^ 1 << bit]), place)
            journal.restart_leader()
            assert not journal.leader.was_closed
        os.pwrite(journal.descriptor, before, place)


def test_a_journal_that_was_closed_is_known_as_that(journal: JournalFile) -> None:
    journal.leader.set_state(JournalState.CLOSED)
    journal.restart_leader()
    assert journal.leader.was_closed


def test_positions_without_frames_are_an_error(journal: JournalFile) -> None:
    for written in (1, CAPACITY + 5, 2**62):
        os.pwrite(journal.descriptor, written.to_bytes(8, "little"), WRITTEN)
        with pytest.raises(RaykaError):
            journal.leader.read()


def test_a_write_that_failed_changes_nothing(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "1.journal")
    journal.write_records([b"a"])
    good, journal.writer._write = journal.writer._write, lambda data, _: sum(map(len, data)) - 1
    with pytest.raises(OSError, match="No space"):
        journal.writer.write([b"lost"])
    journal.writer._write = good
    journal.write_records([b"b"])
    journal.drain()
    journal.close()
    assert journal.log == [b"a", b"b"]


def test_the_program_sees_the_words_of_the_leader(journal: JournalFile) -> None:
    program = journal.writer
    assert (program.is_watched, program.state) == (False, JournalState.OPEN)
    journal.leader.watch(True)
    journal.leader.set_state(JournalState.CLOSED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert program.is_watched
    assert (program.state, program.error) == (JournalState.CLOSED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_the_program_knows_what_the_log_does_not_have(journal: JournalFile) -> None:
    journal.write_records([b"a"])
    journal.drain()
    journal.write_records([b"b", b"c"])
    assert journal.writer.missing(3) == 2
    assert journal.writer.missing(1) == 1


def test_another_file_is_no_journal(tmp_path: Path) -> None:
    files = RealFiles()
    for content in (b"", b"x" * 100, b"x" * (HEADER_BYTES + 10)):
        (tmp_path / "x").write_bytes(content)
        descriptor = files.open(str(tmp_path / "x"))
        assert Journal.open(files, descriptor) is None
        files.close(descriptor)


@settings(max_examples=60)
@given(st.data())
def test_everything_written_is_read_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The leader crashes before or after its mark, and reads while the program writes and is interrupted."""
    journal = JournalFile(tmp_path_factory.mktemp("journal") / "1.journal")
    sizes = st.sampled_from([0, 1, 100, 5_000, 60_000, 300_000, 1_000_000])
    steps = ["write", "write", "interrupt", "read", "crash before the mark", "drain"]
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(steps)):
            case "interrupt":
                end = journal.writer.end
                records = [b"%08d" % end + b"i" * data.draw(sizes)]
                interrupted(partial(journal.writer.write, records), data.draw(st.integers(0, 300)))
                journal.put += records[: journal.writer.end - end]
            case "write":
                count = data.draw(st.integers(1, 40))
                size = data.draw(sizes)
                journal.write_records([b"%08d" % (len(journal.put) + i) + b"x" * size for i in range(count)])
            case "read":
                if (records := journal.append_next()) is not None:
                    journal.leader.drained(records)
            case "crash before the mark":
                journal.append_next()
                journal.restart_leader()
            case "drain":
                journal.drain()
                assert journal.writer.is_drained(journal.writer.end)
    journal.drain()
    journal.close()
    assert journal.log == journal.put


def test_a_list_of_which_a_later_frame_failed_is_written_in_part(journal: JournalFile) -> None:
    good, frames = journal.writer._write, []

    def write(data: Sequence[bytes], position: int) -> int:
        frames.append(position)
        return good(data, position) if len(frames) == 1 else 0

    journal.writer._write = write
    records = [b"%d" % number for number in range(2 * MOST_FRAME_RECORDS)]
    assert journal.write_records(records) == MOST_FRAME_RECORDS
    journal.writer._write = good
    assert journal.write_records(records[MOST_FRAME_RECORDS:]) == MOST_FRAME_RECORDS
    journal.drain()
    assert journal.log == records


def test_an_interrupt_after_a_frame_was_written_leaves_no_frame_behind(journal: JournalFile) -> None:
    """The next record has no room where the frame is, which looks like that of the next record."""
    while journal.write_records([b"x" * LARGE]):
        pass
    journal.drain()
    good = journal.writer._write

    def write(data: Sequence[bytes], position: int) -> int:
        good(data, position)
        raise KeyboardInterrupt

    journal.writer._write = write
    with pytest.raises(KeyboardInterrupt):
        journal.writer.write([b"interrupted"])
    journal.writer._write = good
    assert journal.write_records([b"y" * LARGE]) == 1
    journal.drain()
    assert journal.log == journal.put


def interrupted(call: Callable[[], object], step: int) -> bool:
    """Call; before an instruction of the writer's code, the one of this number, comes a Ctrl-C. False if it is over."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != writer.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupt_at_any_step_loses_and_doubles_nothing(journal: JournalFile, count: int) -> None:
    step = 0
    while interrupted(partial(journal.writer.write, [b"%d" % step] * count), step):
        journal.write_records([b"after %d" % step])
        journal.drain()
        step += 1
    assert [one for one in journal.log if one.startswith(b"after")] == journal.put
    doubtful = [one for one in journal.log if not one.startswith(b"after")]
    assert doubtful == sorted(doubtful, key=int)
    assert all(doubtful.count(one) == count for one in doubtful)
    assert 0 < len(set(doubtful)) < step


def test_an_interrupt_at_any_step_of_a_jump_loses_and_doubles_nothing(journal: JournalFile) -> None:
    """What is put next has room before the jump, in part in the place of a frame of an attempt before."""
    step, rest = 0, b"r" * 30_000
    while True:
        fill(journal, b"x" * LARGE)
        if (records := journal.append_next()) is not None:
            journal.leader.drained(records)
        end = journal.writer.end
        record = b"%d" % step + b"j" * LARGE
        is_interrupted = interrupted(partial(journal.writer.write, [record]), step)
        journal.put += [record][: journal.writer.end - end]
        if not is_interrupted:
            break
        end = journal.writer.end
        interrupted(partial(journal.writer.write, [rest]), step)
        journal.put += [rest][: journal.writer.end - end]
        fill(journal, b"after %d" % step + rest)
        journal.drain()
        assert journal.log == journal.put
        step += 1
    journal.drain()
    assert journal.log == journal.put
    assert step > 50


def test_a_word_that_is_read_half_written_is_no_damage(journal: JournalFile) -> None:
    journal.write_records([b"x" * 300])
    journal.drain()
    torn = [(1 << 20).to_bytes(8, "little")]

    class TornFiles(RealFiles):
        @staticmethod
        def read(descriptor: int, size: int, position: int) -> bytes:
            return torn.pop() if position == WRITTEN and torn else os.pread(descriptor, size, position)

    journal.leader._files = TornFiles()
    assert journal.leader.read() is None
    journal.write_records([b"y"])
    journal.drain()
    assert journal.log == journal.put


def large(number: int, size: int = MOST_FRAME_BYTES + 1) -> bytes:
    return bytes([number]) * size


@pytest.fixture
def large_journal(tmp_path: Path) -> Iterator[JournalFile]:
    file = JournalFile(tmp_path / "1.journal", LARGE_CAPACITY)
    yield file
    file.close()


def test_large_records_are_read_between_small_ones(large_journal: JournalFile) -> None:
    large_journal.write_records([b"small", large(1), large(2, 1_000_000), b"smaller", large(3)])
    large_journal.write_records([large(4, MOST_LARGE_RECORD_BYTES)])
    large_journal.write_records([b"last"])
    large_journal.drain()
    assert large_journal.log == large_journal.put


def test_a_record_in_pieces_is_one_record(large_journal: JournalFile) -> None:
    few, many, small = Pieces(), Pieces(), Pieces()
    for piece in (b"<", large(1), bytearray(large(2)), b">"):
        few.write(piece)
    for number in range(2000):
        many.write(large(number % 256, 500))
    small.write(b"sm")
    small.write(b"all")
    assert large_journal.writer.write([few, many, small]) == 3
    large_journal.drain()
    assert large_journal.log == [bytes(few), bytes(many), b"small"]


class ReadCount(list[bytes]):
    """Buffers that count how often they are gone through."""

    reads = 0

    def __iter__(self) -> Iterator[bytes]:
        self.reads += 1
        return super().__iter__()


def test_a_large_record_is_not_read_before_there_is_room(large_journal: JournalFile) -> None:
    while large_journal.write_records([large(0)]):
        pass
    record = Pieces()
    record.write(large(1))
    record.buffers = buffers = ReadCount(record.buffers)
    assert large_journal.writer.write([record]) == 0
    assert buffers.reads == 0
    large_journal.drain()
    assert large_journal.writer.write([record]) == 1
    large_journal.put.append(bytes(record))
    large_journal.drain()
    assert large_journal.log == large_journal.put


def test_a_large_journal_has_its_capacity_after_the_death_of_its_leader(large_journal: JournalFile) -> None:
    records = [large(number, 1_000_000) for number in range(20)]
    written = large_journal.write_records(records)
    assert written == LARGE_CAPACITY // (1_000_000 + FRAME.size)
    large_journal.append_next()
    large_journal.restart_leader()
    large_journal.drain()
    large_journal.write_records(records[written:])
    large_journal.restart_leader()
    large_journal.drain()
    assert large_journal.log == records


@pytest.mark.parametrize("position", [0, 5, 10, 17, FRAME.size, FRAME.size + 200_000])
def test_a_damaged_large_frame_is_an_error(position: int, large_journal: JournalFile) -> None:
    """Of its header or, when it is appended, of its batch."""
    large_journal.write_records([large(1)])
    place = HEADER_BYTES + position
    byte = os.pread(large_journal.descriptor, 1, place)[0]
    os.pwrite(large_journal.descriptor, bytes([byte ^ 0x55]), place)
    with pytest.raises(RaykaError) as raised:
        large_journal.append_next()
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_word_that_is_read_half_written_gives_no_unfinished_large_frame(large_journal: JournalFile) -> None:
    large_journal.write_records([b"x" * 300])
    large_journal.drain()
    good = large_journal.writer._write
    large_journal.writer._write = lambda pieces, position: good(pieces[:1], position)
    with pytest.raises(OSError, match="No space"):
        large_journal.writer.write([large(1)])
    torn = [(1 << 20).to_bytes(8, "little")]

    class TornFiles(RealFiles):
        @staticmethod
        def read(descriptor: int, size: int, position: int) -> bytes:
            return torn.pop() if position == WRITTEN and torn else os.pread(descriptor, size, position)

    large_journal.leader._files = TornFiles()
    assert large_journal.leader.read() is None
    large_journal.writer._write = good
    large_journal.write_records([large(2)])
    large_journal.drain()
    assert large_journal.log == large_journal.put


def test_a_large_frame_that_the_program_has_not_finished_is_not_read(large_journal: JournalFile) -> None:
    large_journal.write_records([b"small"])
    good = large_journal.writer._write
    large_journal.writer._write = lambda pieces, position: good(pieces[:1], position)
    with pytest.raises(OSError, match="No space"):
        large_journal.writer.write([large(1)])
    large_journal.drain()
    large_journal.writer._write = good
    large_journal.write_records([large(2)])
    large_journal.drain()
    assert large_journal.log == [b"small", large(2)]


def test_a_journal_of_an_impossible_capacity_is_none(journal: JournalFile) -> None:
    os.pwrite(journal.descriptor, (CAPACITY + 1).to_bytes(8, "little"), SIZE)
    assert Journal.open(journal.files, journal.descriptor) is None


def test_a_journal_of_an_earlier_version_has_the_usual_capacity(journal: JournalFile) -> None:
    os.pwrite(journal.descriptor, bytes(8), SIZE)
    leader = Journal.open(journal.files, journal.descriptor)
    assert leader is not None
    assert leader.capacity == CAPACITY
