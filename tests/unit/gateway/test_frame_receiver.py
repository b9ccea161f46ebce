"""Request frames come out of a byte stream however it is cut: whole, byte by byte, with trailing bytes."""

from __future__ import annotations

import struct

import pytest

from rayka.gateway.server.frames import FrameReceiver
from rayka.gateway.wire.reader import MalformedFrame

SCRATCH_BYTES = 4096
FRAMES = [b"12345678", bytes(range(200)) * 30, b"x" * 4000, b"y" * 4092, b"abcdefgh" * 2, b"z" * 5000]


def encode(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def new_receiver() -> FrameReceiver:
    return FrameReceiver(memoryview(bytearray(SCRATCH_BYTES)), 100_000)


def receive(receiver: FrameReceiver, data: bytes, piece: int) -> list[bytes]:
    """Feed the bytes in pieces; another connection overwrites the scratch buffer after each."""
    frames: list[bytes] = []
    while data:
        buffer = receiver.buffer()
        size = min(len(buffer), len(data), piece)
        buffer[:size] = data[:size]
        data = data[size:]
        receiver.received(size)
        while (frame := receiver.next()) is not None:
            frames.append(bytes(frame))
        receiver.keep_rest()
        receiver._scratch[:] = b"\xee" * SCRATCH_BYTES
    return frames


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 1000, 4096, 1 << 20])
def test_frames_come_out_however_the_stream_is_cut(piece: int) -> None:
    assert receive(new_receiver(), encode(*FRAMES), piece) == FRAMES


@pytest.mark.parametrize("frame", FRAMES, ids=len)
@pytest.mark.parametrize("trailing", [b"", b"\0", b"\0\0\0\x09", encode(b"12345678")[:-1]])
def test_trailing_bytes_wait_for_the_rest_of_their_frame(frame: bytes, trailing: bytes) -> None:
    receiver = new_receiver()
    assert receive(receiver, encode(frame) + trailing, 1 << 20) == [frame]
    if trailing.startswith(encode(b"12345678")[:4]):
        assert receive(receiver, b"8", 1) == [b"12345678"]


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 100_001, 2**31 - 1])
@pytest.mark.parametrize("piece", [1, 100])
def test_an_impossible_length_raises(size: int, piece: int) -> None:
    with pytest.raises(MalformedFrame, match=f"frame of {size} bytes"):
        receive(new_receiver(), encode(b"12345678") + struct.pack(">i", size) + bytes(100), piece)


def test_frames_are_writable_and_independent_of_the_scratch_buffer() -> None:
    for frame in FRAMES:
        receiver = new_receiver()
        buffer = receiver.buffer()
        data = encode(frame)
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        receiver.received(taken)
        got = receiver.next()
        if got is None:
            receiver.buffer()[: len(data) - taken] = data[taken:]
            receiver.received(len(data) - taken)
            got = receiver.next()
        assert got is not None
        got[0] = 7
        assert bytes(got) == b"\x07" + frame[1:]


def test_a_frame_that_is_not_complete_is_counted() -> None:
    receiver = new_receiver()
    receive(receiver, encode(b"q" * 9000)[:6004], 1 << 20)
    assert receiver.incomplete_bytes == 9000
    receiver.clear()
    assert receiver.incomplete_bytes == 0


def test_the_memory_of_a_frame_grows_with_what_has_arrived() -> None:
    receiver = FrameReceiver(memoryview(bytearray(SCRATCH_BYTES)), 1 << 21)
    data = encode(b"q" * (1 << 21))
    receive(receiver, data[:4], 1 << 20)
    assert receiver.incomplete_bytes <= 32 * 1024
    receive(receiver, data[4:100_004], 1 << 20)
    assert 100_000 <= receiver.incomplete_bytes <= 400_000
    assert receive(receiver, data[100_004:] + encode(b"12345678"), 1 << 20) == [data[4:], b"12345678"]


def test_bytes_that_are_kept_are_counted_until_they_were_taken() -> None:
    receiver = new_receiver()
    data = encode(b"12345678", b"abcdefgh")
    receiver.buffer()[: len(data)] = data
    receiver.received(len(data))
    assert receiver.next() == b"12345678"
    receiver.keep_rest()
    assert receiver.kept_bytes == 12
    assert receiver.next() == b"abcdefgh"
    receiver.keep_rest()
    assert receiver.kept_bytes == 0
    assert not receiver.has_bytes
