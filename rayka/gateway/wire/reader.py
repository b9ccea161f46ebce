"""Reads the bytes of a request, with a bound on everything that a hostile frame could inflate.

A `FrameReader` walks one frame. Bytes that do not follow the schema raise `MalformedFrame`; no memory is reserved for a
length before it is compared with the bytes that are left.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

Frame = bytearray | bytes | memoryview

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

# Array elements in one request. A frame of empty strings would otherwise become a thousand times its size.
MAX_ELEMENTS: Final = 250_000
MAX_STRING_BYTES: Final = 2**15 - 1
_MAX_UVARINT: Final = 2**31 - 1
_MAX_UVARINT_BYTES: Final = 5


class MalformedFrame(Exception):
    """The bytes of a request do not follow its schema."""


class FrameReader:
    """A position in a frame. `flexible` versions have compact lengths and tagged fields (KIP-482)."""

    __slots__ = ("_elements_left", "buffer", "end", "position")

    def __init__(self, buffer: Frame, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self._elements_left = MAX_ELEMENTS

    def take(self, size: int) -> int:
        """Step over `size` bytes and return where they begin."""
        begin = self.position
        if size < 0 or size > self.end - begin:
            raise MalformedFrame(f"{size} bytes at {begin} of a frame of {self.end}")
        self.position = begin + size
        return begin

    def int8(self) -> int:
        """A signed byte."""
        return int(INT8.unpack_from(self.buffer, self.take(1))[0])

    def int16(self) -> int:
        """Two bytes, signed."""
        position = self.position
        if position + 2 > self.end:
            self.take(2)
        self.position = position + 2
        value: int = INT16.unpack_from(self.buffer, position)[0]
        return value

    def int32(self) -> int:
        """Four bytes, signed."""
        position = self.position
        if position + 4 > self.end:
            self.take(4)
        self.position = position + 4
        value: int = INT32.unpack_from(self.buffer, position)[0]
        return value

    def int64(self) -> int:
        """Eight bytes, signed."""
        return int(INT64.unpack_from(self.buffer, self.take(8))[0])

    def uvarint(self) -> int:
        """A variable-length unsigned number of at most 31 bits."""
        buffer, position = self.buffer, self.position
        if position < self.end and (first := buffer[position]) < 0x80:
            self.position = position + 1
            return first
        value = shift = 0
        for index in range(position, min(self.end, position + _MAX_UVARINT_BYTES)):
            byte = buffer[index]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > _MAX_UVARINT:
                    break
                self.position = index + 1
                return value
            shift += 7
        raise MalformedFrame(f"bad varint at {position}")

    def topic_id(self) -> uuid.UUID | None:
        """Sixteen bytes; all zero stands for no id."""
        begin = self.take(16)
        raw = bytes(self.buffer[begin : begin + 16])
        return uuid.UUID(bytes=raw) if raw.count(0) != 16 else None

    def string(self, flexible: bool) -> str | None:
        """A nullable UTF-8 string, at most 32,767 bytes: Kafka refuses longer ones with compact lengths too."""
        size = self.uvarint() - 1 if flexible else self.int16()
        if size < 0:
            self._null(size)
            return None
        if size > MAX_STRING_BYTES:
            raise MalformedFrame(f"string of {size} bytes at {self.position}")
        begin = self.position
        end = begin + size
        if end > self.end:
            self.take(size)
        self.position = end
        try:
            return str(self.buffer[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFrame(f"string at {begin} is not UTF-8") from error

    def required_string(self, flexible: bool) -> str:
        """A string that must not be null."""
        value = self.string(flexible)
        if value is None:
            raise MalformedFrame(f"null string before {self.position}")
        return value

    def blob_size(self, flexible: bool) -> int:
        """The length of nullable bytes that follow, -1 for null; checked against the frame's end."""
        size = self.uvarint() - 1 if flexible else self.int32()
        if size < 0:
            self._null(size)
        elif size > self.end - self.position:
            raise MalformedFrame(f"{size} bytes at {self.position} of a frame of {self.end}")
        return size

    def blob(self, flexible: bool) -> bytes | None:
        """Nullable bytes, copied."""
        size = self.blob_size(flexible)
        if size < 0:
            return None
        begin = self.take(size)
        return bytes(self.buffer[begin : begin + size])

    def records(self, flexible: bool) -> Frame | None:
        """Nullable record batches, copied."""
        return self.blob(flexible)

    def array_size(self, flexible: bool, element_size: int = 1) -> int:
        """The number of elements that follow, -1 for null. `element_size` is the least an element takes."""
        size = self.uvarint() - 1 if flexible else self.int32()
        if size < 0:
            self._null(size)
            return size
        if size * element_size > self.end - self.position:
            raise MalformedFrame(f"array of {size} at {self.position} of a frame of {self.end}")
        self._elements_left -= size
        if self._elements_left < 0:
            raise MalformedFrame(f"more than {MAX_ELEMENTS} array elements")
        return size

    def required_array_size(self, flexible: bool, element_size: int = 1) -> int:
        """As `array_size`, of an array that must not be null."""
        size = self.array_size(flexible, element_size)
        if size < 0:
            raise MalformedFrame(f"null array before {self.position}")
        return size

    def skip_tags(self) -> None:
        """Step over tagged fields that mean nothing here (KIP-482)."""
        position = self.position
        if position < self.end and self.buffer[position] == 0:
            self.position = position + 1
            return
        for _ in range(self.tag_count()):
            self.uvarint()
            self.take(self.uvarint())

    def tag_count(self) -> int:
        """How many tagged fields follow; each is a tag, a length and as many bytes."""
        count = self.uvarint()
        if count * 2 > self.end - self.position:
            raise MalformedFrame(f"{count} tagged fields at {self.position} of a frame of {self.end}")
        return count

    def _null(self, size: int) -> None:
        if size != -1:
            raise MalformedFrame(f"length {size} before {self.position}")
