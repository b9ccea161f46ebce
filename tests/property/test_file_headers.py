"""Batches of a file are found alike by plain Python and by compiled code."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from rayka.client.compiled import Compiled
from rayka.client.consumer import stored
from rayka.client.consumer.stored import LEAST_BYTES, StoredBatches, find_stored
from rayka.gateway.server.segment_files import SegmentFiles
from rayka.storage.format.batch import HEADER, LOG_OVERHEAD, MAGIC, RECORD_BATCH_OVERHEAD
from rayka.types import FileSlice, TopicPartition

EVENTS = TopicPartition("events", 0)
COMPILED = Compiled("rayka.storage.columns.file_headers", "batches_in_file", stored._load)
COMPILED.load()
PLAIN = Compiled("no such module", "", lambda _: None)
MOST_OFFSET = 2**63 - 1


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Headers, mostly in order, each with as many bytes behind it as it says or less."""
    made, offset = bytearray(), draw(st.integers(0, 20))
    for _ in range(draw(st.integers(1, 12))):
        size = draw(st.integers(RECORD_BATCH_OVERHEAD, 300_000))
        count = draw(st.integers(1, 30))
        fields = [offset, size - LOG_OVERHEAD, 0, MAGIC, draw(st.integers(0, 2**32 - 1)), 0, count - 1, 0, 0, 0, 0, 0]
        fields.append(count)
        if draw(st.integers(0, 19)) == 0:
            place, numbers = draw(
                st.sampled_from(
                    [
                        (0, st.sampled_from([offset - 40, -1, -(2**63), MOST_OFFSET, MOST_OFFSET - count, 2**40])),
                        (1, st.sampled_from([-(2**31), -12, 0, 48, 49, 2**31 - 1])),
                        (3, st.sampled_from([0, 1, 3, -1])),
                        (6, st.sampled_from([-1, -(2**31), 0, 2**31 - 1])),
                        (12, st.sampled_from([-1, 0, 2**31 - 1, -(2**31)])),
                    ]
                )
            )
            fields[place] = draw(numbers)
        made += HEADER.pack(*fields) + bytes(size - RECORD_BATCH_OVERHEAD)
        offset += count + draw(st.sampled_from([0, 0, 0, 5]))
    return bytes(made[: len(made) - draw(st.sampled_from([0, 0, 1, 70, 200]))])


def found_by(way: Compiled, fetch_offset: int, source: FileSlice, end_offset: float) -> StoredBatches | None:
    files = SegmentFiles()
    with patch.object(stored, "_compiled", way):
        found = find_stored(EVENTS, fetch_offset, source, files.open(source), end_offset, may_wait=True)
    return None if found is None else found.batches


@given(
    batches(),
    st.integers(0, 60),
    st.sampled_from([float("inf"), 0, 30, 100, 2**40, MOST_OFFSET]),
    st.sampled_from([1, 61, 100_000, 1 << 20]),
    st.sampled_from([1, 8192, 100_000]),
)
def test_both_ways_find_the_same(
    content: bytes, fetch_offset: int, end_offset: float, piece_bytes: int, least_mean_bytes: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.multiple(
            stored, _PIECE_BYTES=piece_bytes, _LEAST_MEAN_BYTES=least_mean_bytes, _LARGE_BATCH=least_mean_bytes
        ),
    ):
        path = Path(directory, "0.log")
        path.write_bytes(bytes(77) + content + bytes(LEAST_BYTES))
        for size in (max(len(content), LEAST_BYTES), len(content) + LEAST_BYTES):
            source = FileSlice(str(path), 77, size, path.stat().st_ino)
            plain = found_by(PLAIN, fetch_offset, source, end_offset)
            assert found_by(COMPILED, fetch_offset, source, end_offset) == plain
            if plain is not None:
                assert plain.size == sum(piece.size for piece in plain.pieces)
