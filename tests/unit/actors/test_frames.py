"""Frames survive any cutting of the byte stream."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.actors.channel.frames import FrameBuffer, encode

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 65535),
        st.integers(0, 2**32 - 1),
        st.lists(st.one_of(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.none()), max_size=4),
        st.binary(max_size=300) | st.integers(200_000, 700_000).map(bytes),
    ),
    max_size=5,
)


def feed(buffer: FrameBuffer, data: bytes, cuts: list[int]) -> list[tuple[int, int, object, bytes]]:
    got: list[tuple[int, int, object, bytes]] = []
    position = 0
    sizes = iter(cuts * len(data))
    while position < len(data):
        room = buffer.writable()
        piece = data[position : position + min(len(room), next(sizes))]
        room[: len(piece)] = piece
        position += len(piece)
        buffer.received(len(piece), lambda op, cid, control, payload: got.append((op, cid, control, bytes(payload))))
    return got


@given(FRAMES, st.lists(st.integers(50_000, 300_000), min_size=1, max_size=5))
def test_frames_come_out_as_they_went_in(frames: list, cuts: list[int]) -> None:
    data = b"".join(encode(op, cid, control, len(payload)) + payload for op, cid, control, payload in frames)
    assert feed(FrameBuffer(), data, cuts) == [(op, cid, tuple(c), p) for op, cid, c, p in frames]


@pytest.mark.parametrize("cut", [1, 2, 7, 16, 17])
def test_frames_byte_by_byte(cut: int) -> None:
    frames = [(1, 7, ["a", 1], b"payload"), (2, 8, [], b""), (3, 9, [None], b"x" * 1000)]
    data = b"".join(encode(op, cid, control, len(payload)) + payload for op, cid, control, payload in frames)
    assert feed(FrameBuffer(), data, [cut]) == [(op, cid, tuple(c), p) for op, cid, c, p in frames]


@pytest.mark.parametrize(
    "header", [struct.pack("<IIHxxI", 0xFFFFFFFF, 1, 1, 0), struct.pack("<IIHxxI", 20, 1, 1, 1000)]
)
def test_a_frame_that_cannot_be_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="frame of"):
        feed(FrameBuffer(), header, [16])
