"""Memory is read into again when nobody has it any more, and no earlier."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.client.consumer.read_buffers import HugePages, ReadBuffers, TableBuffers
from rayka.client.consumer.table_maker import TableMaker

MIB = 1 << 20


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_buffer_is_reused_when_it_has_no_views() -> None:
    buffers = ReadBuffers()
    first = buffers.take(MIB)
    of_first = address(first)
    assert address(buffers.take(MIB)) != of_first
    array = np.frombuffer(first, np.uint8)[10:20]
    del first
    assert of_first not in [address(buffers.take(MIB - 5)) for _ in range(3)]
    del array
    assert of_first in [address(view) for view in [buffers.take(MIB - 5) for _ in range(3)]]


def test_a_tool_that_looks_at_variables_changes_nothing() -> None:
    buffers = ReadBuffers()
    sys.setprofile(lambda frame, *_: frame.f_locals and None)
    try:
        views = [buffers.take(size) for size in (MIB, MIB, 9 * MIB, 9 * MIB)]
    finally:
        sys.setprofile(None)
    assert len({address(view) for view in views}) == 4


@given(st.lists(st.tuples(st.integers(0, 6 * MIB), st.booleans()), max_size=12))
def test_a_buffer_in_use_is_never_overwritten(asked: list[tuple[int, bool]]) -> None:
    buffers, held = ReadBuffers(), []
    for number, (size, is_held) in enumerate(asked):
        view = buffers.take(size)
        assert len(view) == size
        view[:1] = bytes([number])[:size]
        if is_held and size:
            held.append((view, number))
        del view
    assert [view[0] for view, _ in held] == [number for _, number in held]


def test_unused_buffers_are_bounded() -> None:
    buffers = ReadBuffers(16 * MIB)
    views = [buffers.take(3 * MIB) for _ in range(20)]
    views.clear()
    gc.collect()
    assert sum(len(each) for each in gc.get_referents(buffers.__dict__["_buffers"])) <= 16 * MIB


@pytest.mark.parametrize("size", [MIB, 9 * MIB])
def test_two_threads_never_get_the_same_memory(size: int) -> None:
    buffers, taken = TableBuffers(), []
    buffers.allocate(size)
    other = threading.Thread(target=lambda: taken.append(buffers.allocate(size)))

    def let_the_other_thread_run(frame: FrameType, event: str, _: Any) -> None:
        """Where the memory was found unused, and is not used yet."""
        if event == "return" and frame.f_code.co_name == "_is_unused" and other.ident is None:
            other.start()
            other.join(timeout=1)

    sys.setprofile(let_the_other_thread_run)
    try:
        taken.append(buffers.allocate(size))
    finally:
        sys.setprofile(None)
    other.join()
    assert len({buffer.address for buffer in taken}) == 2


def test_tables_that_a_program_keeps_have_no_spare_memory() -> None:
    buffers = TableBuffers()
    kept = [buffers.allocate(70_000) for _ in range(600)]
    before = pa.total_allocated_bytes()
    kept += [buffers.allocate(70_000) for _ in range(10)]
    assert 700_000 <= pa.total_allocated_bytes() - before <= 701_000


def test_a_short_column_that_a_program_keeps_does_not_keep_the_memory_of_a_long_one() -> None:
    buffers, kept = TableBuffers(), []
    at = {buffers.allocate(24 * MIB).address}
    for _ in range(40):
        kept.append(buffers.allocate(200_000))
        at.add(buffers.allocate(24 * MIB).address)
    assert len(at) == 1


def test_there_is_room_for_long_columns_again_after_many_short_ones() -> None:
    buffers = TableBuffers()
    short = [buffers.allocate(200_000) for _ in range(600)]
    short.clear()
    before = pa.total_allocated_bytes()
    long = [buffers.allocate(40 * MIB) for _ in range(3)]
    assert pa.total_allocated_bytes() == before
    assert len({each.address for each in long}) == 3


def test_one_long_column_makes_room_for_a_short_one() -> None:
    buffers = TableBuffers()
    long = [buffers.allocate(40 * MIB) for _ in range(3)]
    at = {each.address for each in long}
    long.clear()
    before = pa.total_allocated_bytes()
    short = buffers.allocate(200_000)
    assert pa.total_allocated_bytes() == before
    again = [buffers.allocate(39 * MIB) for _ in range(2)]
    assert short.address not in {each.address for each in again} < at


def test_memory_that_is_too_large_to_be_kept_leaves_the_kept_memory_alone() -> None:
    buffers = TableBuffers()
    kept = buffers.allocate(MIB)
    at = kept.address
    del kept
    before = pa.total_allocated_bytes()
    large = buffers.allocate(150 * MIB)
    assert pa.total_allocated_bytes() - before >= large.size
    assert buffers.allocate(MIB).address == at


def test_without_memory_to_map_the_program_gets_that_of_python_and_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    def map_nothing(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", map_nothing)
    assert len(ReadBuffers().take(MIB)) == MIB
    assert TableBuffers().allocate(MIB).size == MIB


class UnresizableMapping(mmap.mmap):
    """Memory of a system without mremap, or with one that a sandbox forbids."""

    error: Exception

    def resize(self, size: int) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [SystemError("mmap: resizing not available--no mremap()"), PermissionError(errno.EPERM, "Operation not permitted")],
)
def test_where_no_mapping_can_be_resized_all_memory_is_that_of_python_and_arrow(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(UnresizableMapping, "error", error, raising=False)
    monkeypatch.setattr(mmap, "mmap", UnresizableMapping)
    reads, tables = ReadBuffers(), TableBuffers()
    views = [reads.take(MIB) for _ in range(3)]
    assert len({address(view) for view in views}) == 3
    before = pa.total_allocated_bytes()
    kept = [tables.allocate(MIB) for _ in range(3)]
    assert pa.total_allocated_bytes() - before >= 3 * MIB
    assert len({buffer.address for buffer in kept}) == 3


def test_a_mapping_that_can_not_be_resized_any_more_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may forbid itself system calls when it has begun."""
    monkeypatch.setattr(mmap, "mmap", UnresizableMapping)
    with monkeypatch.context() as before:
        before.setattr(UnresizableMapping, "resize", lambda *_: None)
        buffers = ReadBuffers()
        kept = buffers.take(MIB)
    monkeypatch.setattr(UnresizableMapping, "error", PermissionError(errno.EPERM, "Not permitted"), raising=False)
    assert address(buffers.take(MIB)) != address(kept)


def test_a_call_for_which_no_thread_can_be_started_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has half a table. Python's executor keeps it for a thread that may start later."""
    maker = TableMaker(check_crcs=True)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def call() -> None:
        raise AssertionError("It was done already, by the thread that wanted it")

    gone = weakref.ref(call)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        with contextlib.suppress(RuntimeError):
            maker.threads.submit(call)
            pytest.fail("there was a thread")
    del call
    assert gone() is None
    assert maker.threads.submit(int).result(60) == 0
    maker.close()
    with pytest.raises(RuntimeError):
        maker.threads.submit(int)


def test_a_slightly_larger_table_needs_no_other_memory() -> None:
    buffers = ReadBuffers(64 << 20)
    for megabytes in (9, 12, 10, 15):
        taken = buffers.take_kept(megabytes << 20)
        assert taken is not None
        assert len(taken) == megabytes << 20
        del taken
    assert len(buffers._buffers) == 1


def areas_of(buffer: mmap.mmap) -> Iterator[tuple[str, int]]:
    """What the kernel says of the areas of memory that it is in, and how many bytes of it are there."""
    start = int(np.frombuffer(buffer, np.uint8).ctypes.data)
    for area in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)[1:]:
        first, end = (int(address, 16) for address in area.split(maxsplit=1)[0].split("-"))
        if (size := min(end, start + len(buffer)) - max(first, start)) > 0:
            yield area, size


def huge_page_bytes(buffer: mmap.mmap) -> int:
    """So much of it may be in pages of 2 MB."""
    return sum(size for area, size in areas_of(buffer) if re.search(r"^VmFlags:.* hg\b", area, re.MULTILINE))


@pytest.mark.parametrize(
    ("size", "clearing_s", "has_huge_pages"),
    [(24, 0.0005, True), (8, 0.0005, True), (24, 0.005, False), (24, 0.00001, False), (7, 0.0005, False)],
)
def test_large_buffers_have_huge_pages_as_long_as_the_first_one_of_each_is_quick(
    monkeypatch: pytest.MonkeyPatch, size: int, clearing_s: float, has_huge_pages: bool
) -> None:
    buffers, cleared = ReadBuffers(64 * MIB), list[int]()
    clock = (number * clearing_s for number in range(10))
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(ctypes, "memset", lambda byte, value, count: cleared.append(count))
    assert all(buffers.take_kept(size * MIB) is not None for _ in range(2))
    (first,) = buffers._buffers
    held = [buffers.take_kept(size * MIB) for _ in range(2)]
    assert all(view is not None for view in held)
    assert first in buffers._buffers  # also with two kinds of pages it was found unused
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert {huge_page_bytes(each) for each in buffers._buffers} == {size * MIB if has_huge_pages else 0}
    assert len(cleared) == (2 if has_huge_pages else size >= 8)  # a slow one tells about those that follow


def test_the_huge_page_that_is_looked_at_is_cleared() -> None:
    with mmap.mmap(-1, 24 * MIB) as buffer:
        assert not is_in_memory(buffer, 2 * MIB)
        HugePages().ask_for(buffer)
        assert is_in_memory(buffer, 2 * MIB)
        assert not is_in_memory(buffer, 8 * MIB)


def is_in_memory(buffer: mmap.mmap, position: int) -> bool:
    """Whether the page at this position is there: the highest bit of the eight bytes that the kernel has about it."""
    page = (int(np.frombuffer(buffer, np.uint8).ctypes.data) + position) // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(8 * page)
        return bool(pages.read(8)[7] & 0x80)


@pytest.mark.parametrize("is_known", [True, False])
def test_where_there_are_no_huge_pages_a_large_buffer_has_small_ones(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    class Mapping(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    if is_known:
        monkeypatch.setattr(mmap, "mmap", Mapping)
    else:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert ReadBuffers(64 * MIB).take_kept(24 * MIB) is not None
