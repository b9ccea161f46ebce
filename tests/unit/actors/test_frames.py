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
        st.binary(max_size=40),
        st.booleans(),
        st.binary(max_size=300) | st.integers(200_000, 700_000).map(bytes),
    ),
    max_size=5,
)


def feed(buffer: FrameBuffer, data: bytes, cuts: list[int]) -> list[tuple[int, int, bytes, bool, bytes]]:
    got: list[tuple[int, int, bytes, bool, bytes]] = []
    position = 0
    sizes = iter(cuts * len(data))
    while position < len(data):
        room = buffer.writable()
        piece = data[position : position + min(len(room), next(sizes))]
        room[: len(piece)] = piece
        position += len(piece)
        buffer.received(
            len(piece),
            lambda op, cid, failed, control, payload: got.append((op, cid, bytes(control), failed, bytes(payload))),
        )
    return got


def encode_all(frames: list[tuple[int, int, bytes, bool, bytes]]) -> bytes:
    return b"".join(
        encode(op, cid, control, len(payload), failed) + payload for op, cid, control, failed, payload in frames
    )


@given(FRAMES, st.lists(st.integers(50_000, 300_000), min_size=1, max_size=5))
def test_frames_come_out_as_they_went_in(frames: list, cuts: list[int]) -> None:
    assert feed(FrameBuffer(), encode_all(frames), cuts) == frames


@pytest.mark.parametrize("cut", [1, 2, 7, 16, 17])
def test_frames_byte_by_byte(cut: int) -> None:
    frames = [(1, 7, b"control", False, b"payload"), (2, 8, b"", True, b""), (3, 9, b"c", False, b"x" * 1000)]
    assert feed(FrameBuffer(), encode_all(frames), [cut]) == frames


@pytest.mark.parametrize(
    "header", [struct.pack("<IIHHI", 0xFFFFFFFF, 1, 1, 0, 0), struct.pack("<IIHHI", 20, 1, 1, 0, 1000)]
)
def test_a_frame_that_cannot_be_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="frame of"):
        feed(FrameBuffer(), header, [16])


def test_a_large_frame_leaves_no_large_buffer_behind() -> None:
    buffer = FrameBuffer()
    frames = [(1, 7, b"control", False, bytes(20_000_000)), (2, 8, b"", False, b"payload")]
    assert feed(buffer, encode_all(frames), [1 << 20]) == frames
    assert len(buffer.writable()) < 1_000_000
    assert feed(buffer, encode_all(frames[1:]), [7]) == frames[1:]
