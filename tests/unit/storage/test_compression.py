"""Each codec: what others write is read, what is damaged or too large is refused, and nothing else is raised."""

from __future__ import annotations

import gzip
import os
import struct
import time
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format import xerial
from rayka.storage.format.compression import Codec, compress, decompress

CONTENT = b"".join(b"record %d of a topic with some repetition; " % number for number in range(5000))
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]


def refusal(codec: Codec, data: bytes, max_size: int = 1 << 28) -> ErrorCode:
    with pytest.raises(RaykaError) as raised:
        decompress(codec, data, max_size)
    return raised.value.code


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("content", [b"", b"x", CONTENT])
@pytest.mark.parametrize("view", [bytes, bytearray, memoryview])
def test_round_trip_from_any_buffer(codec: Codec, content: bytes, view: type) -> None:
    assert decompress(codec, view(compress(codec, view(content)))) == content


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Codec.GZIP, [-1, 1, 6, 9]),
        (Codec.LZ4, [1, 2, 3, 9, 12, 17]),
        (Codec.ZSTD, [-131072, -5, 1, 3, 19, 22]),
        (Codec.SNAPPY, [3]),
        (Codec.NONE, [3]),
    ],
)
def test_every_level_that_kafka_allows(codec: Codec, levels: list[int]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, CONTENT, level)) == CONTENT


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_higher_level_compresses_better(codec: Codec) -> None:
    low, high = {Codec.GZIP: (1, 9), Codec.LZ4: (9, 12), Codec.ZSTD: (-20, 19)}[codec]
    assert len(compress(codec, CONTENT, high)) < len(compress(codec, CONTENT, low))


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("size", [False, True])
def test_reads_every_kind_of_lz4_frame(linked: bool, content_checksum: bool, block_checksum: bool, size: bool) -> None:
    frame = lz4.frame.compress(
        CONTENT,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=linked,
        content_checksum=content_checksum,
        block_checksum=block_checksum,
        store_size=size,
    )
    assert decompress(Codec.LZ4, frame) == CONTENT


def test_writes_lz4_frames_that_java_reads() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, CONTENT))
    assert not info["block_linked"]
    assert info["content_size"] == 0


def test_reads_zstd_with_and_without_content_size() -> None:
    for with_size in (True, False):
        frame = zstandard.ZstdCompressor(write_content_size=with_size).compress(CONTENT)
        assert (zstandard.frame_content_size(frame) == len(CONTENT)) is with_size
        assert decompress(Codec.ZSTD, frame) == CONTENT


def test_reads_raw_snappy_and_framed_snappy() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(CONTENT))) == CONTENT
    framed = compress(Codec.SNAPPY, CONTENT)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    first_block = struct.unpack_from(">i", framed, 16)[0]
    assert decompress(Codec.SNAPPY, framed[20 : 20 + first_block]) == CONTENT[: xerial.BLOCK_SIZE]
    little_endian = xerial.MAGIC + struct.pack("<ii", 1, 1) + framed[16:]
    assert decompress(Codec.SNAPPY, little_endian) == CONTENT
    assert decompress(Codec.SNAPPY, framed + framed) == CONTENT * 2


def test_reads_gzip_of_several_members() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_damage_is_a_corrupt_message(codec: Codec) -> None:
    data = compress(codec, CONTENT)
    for damaged in (b"", b"\x01", b"\xff" * 50, data[: len(data) // 2], data[:-1], data[:3]):
        assert refusal(codec, damaged) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", list(Codec))
def test_output_is_bounded(codec: Codec) -> None:
    data = compress(codec, CONTENT)
    assert decompress(codec, data, len(CONTENT)) == CONTENT
    assert refusal(codec, data, len(CONTENT) - 1) is ErrorCode.MESSAGE_TOO_LARGE
    bomb = compress(codec, bytes(1 << 24))
    assert refusal(codec, bomb, 1 << 20) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_zstd_bomb_of_unknown_size_is_bounded() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 24))
    assert refusal(Codec.ZSTD, bomb, 1 << 20) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_zstd_bomb_of_tiny_blocks_is_bounded_before_it_is_built() -> None:
    """Each block of 4 bytes repeats one byte 128 K times: 32 KB stand for 1 GB."""
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x58"
    blocks = [struct.pack("<I", 131072 << 3 | 1 << 1 | (number == 8191))[:3] + b"x" for number in range(8192)]
    tracemalloc.start()
    assert refusal(Codec.ZSTD, header + b"".join(blocks), 1 << 20) is ErrorCode.MESSAGE_TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20
    whole = header + b"".join(blocks[:7] + blocks[-1:])
    assert decompress(Codec.ZSTD, whole) == b"x" * (8 * 131072)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("size", [10, 200_000, 9_000_000])
def test_reads_zstd_of_many_blocks(checksum: bool, size: int) -> None:
    content = os.urandom(1000) * (size // 1000) + b"end"
    frame = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=False).compress(content)
    assert decompress(Codec.ZSTD, frame + b"ignored") == content


def test_the_time_for_many_empty_gzip_members_is_linear() -> None:
    member = gzip.compress(b"")

    def seconds(count: int) -> float:
        begin = time.process_time()
        assert decompress(Codec.GZIP, member * count) == b""
        return time.process_time() - begin

    few = min(seconds(4_000) for _ in range(3))
    assert min(seconds(64_000) for _ in range(2)) < 16 * 5 * few


def test_a_snappy_block_that_claims_four_gigabytes_takes_no_memory() -> None:
    assert refusal(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("name", "codec"),
    [("none", Codec.NONE), ("uncompressed", Codec.NONE), ("gzip", Codec.GZIP), ("ZSTD", Codec.ZSTD)],
)
def test_codecs_by_name(name: str, codec: Codec) -> None:
    assert Codec.parse(name) is codec


def test_an_unknown_codec_name_is_refused() -> None:
    with pytest.raises(RaykaError, match="brotli") as raised:
        Codec.parse("brotli")
    assert raised.value.code is ErrorCode.INVALID_CONFIG
