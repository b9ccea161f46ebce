"""The compression codecs of record batches, written as Java clients write them, and read as any client writes them.

What differs from a library's defaults: snappy has the xerial framing (raw snappy is read too); lz4 frames
have independent blocks of 64 KB, because Java's reader takes no linked ones, and no content size; zstd and lz4 frames
are read with and without a content size. The size of the output is bounded before memory is taken.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterator
from typing import TypeAlias

import cramjam
import lz4.frame
import zstandard

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format import xerial

Buffer: TypeAlias = bytes | bytearray | memoryview


class Codec(enum.IntEnum):
    """Bits 0 to 2 of the batch attributes; the names in lower case are the values of `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """The name in `compression.type`: none, gzip, snappy, lz4, zstd (a topic may also say uncompressed)."""
        return self.name.lower()

    @classmethod
    def parse(cls, name: str) -> Codec:
        """The codec that `compression.type` names; INVALID_CONFIG for others. "uncompressed" is NONE."""
        try:
            return cls.NONE if name == "uncompressed" else cls[name.upper()]
        except KeyError:
            raise RaykaError(ErrorCode.INVALID_CONFIG, f"Unknown compression type: {name}") from None


LEVELS = {Codec.GZIP: (*range(1, 10), -1), Codec.LZ4: range(1, 18), Codec.ZSTD: range(-131_072, 23)}
"""The levels that Kafka's settings allow; the default of gzip is -1."""
DEFAULT_MAX_SIZE = 256 * 1024 * 1024
"""Bytes that one batch may decompress to."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_DEFAULT_LEVEL = -1
_GZIP_FIRST_PIECE = 512
"""Input given first to each further member; what the member leaves of it is copied."""
_LZ4_DEFAULT_LEVEL = 9
_LZ4_MAX_RATIO = 255
_ZSTD_DEFAULT_LEVEL = 3
_ZSTD_BLOCKS = 32
"""Blocks decompressed at once. A block of 4 bytes can hold 128 KB, so this bounds what is built to 4 MB."""
_ZSTD_BLOCK_HEADER_SIZE = 3
_ZSTD_LAST_BLOCK = 1
_ZSTD_BLOCK_TYPE = 6
_ZSTD_RLE_BLOCK = 2
_SNAPPY_MAX_RATIO = 64
_UNBOUNDED = -1

_LIBRARY_ERRORS = (
    cramjam.DecompressionError,
    zstandard.ZstdError,
    zlib.error,
    RuntimeError,
    ValueError,
    EOFError,
    OverflowError,
    MemoryError,
)


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed. `level` is as in Kafka's `compression.gzip.level`, `.lz4.level` and `.zstd.level`."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, _GZIP_DEFAULT_LEVEL if level is None else level, _GZIP_WINDOW)
        case Codec.SNAPPY:
            return _snappy(data)
        case Codec.LZ4:
            return _lz4(data, _LZ4_DEFAULT_LEVEL if level is None else level)
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=_ZSTD_DEFAULT_LEVEL if level is None else level).compress(data)


def decompress(codec: Codec, data: Buffer, max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """The content of `data`: CORRUPT_MESSAGE if it is not whole, MESSAGE_TOO_LARGE above `max_size` bytes."""
    try:
        return _DECOMPRESS[codec](memoryview(data), max_size)
    except _LIBRARY_ERRORS as error:
        message = f"{len(data)} bytes are not {codec.config_name}: {error}"
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, message) from error


def _snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    starts = range(0, len(view), xerial.BLOCK_SIZE)
    return xerial.frame([bytes(cramjam.snappy.compress_raw(view[i : i + xerial.BLOCK_SIZE])) for i in starts])


def _lz4(data: Buffer, level: int) -> bytes:
    """Kafka gives its default level, 9, to the fast compressor; every other level is one of the high compressor."""
    compression_level = 0 if level == _LZ4_DEFAULT_LEVEL else max(level, lz4.frame.COMPRESSIONLEVEL_MINHC)
    compressed: bytes = lz4.frame.compress(
        data,
        compression_level=compression_level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return compressed


def _none(data: memoryview, max_size: int) -> bytes:
    if len(data) > max_size:
        raise _too_large(Codec.NONE, len(data), max_size)
    return bytes(data)


def _gunzip(data: memoryview, max_size: int) -> bytes:
    """All members of a gzip file; bytes that are not a member after the last are ignored, as Java does.

    Few files have a second member, so the first gets everything at once. The others get pieces that grow: the time
    for a file of many small members is linear in its size.
    """
    parts: list[bytes] = []
    left = max_size
    position, piece_size = 0, len(data)
    while not position or data[position : position + len(_GZIP_MAGIC)] == _GZIP_MAGIC:
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            piece = data[position : position + piece_size]
            if not piece:
                raise EOFError("the stream ends early")
            if part := member.decompress(piece, left + 1):
                parts.append(part)
                left -= len(part)
            if left < 0:
                raise _too_large(Codec.GZIP, len(data), max_size)
            position += len(piece) - len(member.unused_data)
            piece_size *= 2
        piece_size = _GZIP_FIRST_PIECE
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unsnappy(data: memoryview, max_size: int) -> bytes:
    is_framed = xerial.is_framed(data)
    size = 0
    for block in xerial.blocks(data) if is_framed else (data,):
        block_size = cramjam.snappy.decompress_raw_len(block)
        if block_size > _SNAPPY_MAX_RATIO * len(block):
            raise ValueError(f"a block of {len(block)} bytes claims {block_size}")
        size += block_size
    if size > max_size:
        raise _too_large(Codec.SNAPPY, len(data), max_size)
    if not is_framed:
        return bytes(cramjam.snappy.decompress_raw(data))
    return b"".join(map(cramjam.snappy.decompress_raw, xerial.blocks(data)))


def _unlz4(data: memoryview, max_size: int) -> bytes:
    """One frame; what follows it is ignored, as Java does."""
    cannot_exceed = _LZ4_MAX_RATIO * len(data) <= max_size
    frame = lz4.frame.LZ4FrameDecompressor()
    content: bytes = frame.decompress(data, max_length=_UNBOUNDED if cannot_exceed else max_size + 1)
    if len(content) > max_size:
        raise _too_large(Codec.LZ4, len(data), max_size)
    if not frame.eof:
        raise EOFError("the frame ends early")
    return content


def _unzstd(data: memoryview, max_size: int) -> bytes:
    if zstandard.frame_content_size(data) > max_size:
        raise _too_large(Codec.ZSTD, len(data), max_size)
    frame = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    left = max_size
    for blocks in _zstd_blocks(data):
        parts.append(frame.decompress(blocks))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(Codec.ZSTD, len(data), max_size)
        if frame.eof:
            return b"".join(parts)
    raise EOFError("the frame ends early")


def _zstd_blocks(data: memoryview) -> Iterator[memoryview]:
    """A frame in pieces of at most `_ZSTD_BLOCKS` blocks, then what follows its last block (RFC 8878, 3.1.1.2)."""
    begin, end = 0, zstandard.frame_header_size(data)
    count = 0
    while end + _ZSTD_BLOCK_HEADER_SIZE <= len(data):
        header = int.from_bytes(data[end : end + _ZSTD_BLOCK_HEADER_SIZE], "little")
        end += _ZSTD_BLOCK_HEADER_SIZE + (1 if header & _ZSTD_BLOCK_TYPE == _ZSTD_RLE_BLOCK else header >> 3)
        count += 1
        if count == _ZSTD_BLOCKS:
            yield data[begin:end]
            begin, count = end, 0
        if header & _ZSTD_LAST_BLOCK:
            break
    yield data[begin:]


def _too_large(codec: Codec, size: int, max_size: int) -> RaykaError:
    return RaykaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{size} bytes of {codec.config_name} decompress to more than the {max_size} allowed",
    )


_DECOMPRESS = {
    Codec.NONE: _none,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
