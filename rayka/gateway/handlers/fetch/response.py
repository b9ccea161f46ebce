"""The bytes of Fetch responses, versions 0 to 18.

Everything but the records is written first, with a note of where each piece of records belongs. Then the
frame is put together in one piece of memory of the final size, into which the segments are read.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from rayka.errors import ErrorCode
from rayka.gateway.handlers.fetch.request import FIRST_FLEXIBLE, FIRST_WITH_SESSIONS, FIRST_WITH_TOPIC_ID
from rayka.gateway.handlers.fetch.sessions import SessionPartition, TopicKey
from rayka.gateway.server.request import response_head
from rayka.gateway.server.segment_files import Piece
from rayka.gateway.wire.leader_hints import LeaderHints
from rayka.gateway.wire.reader import INT16, INT32, uvarint_bytes
from rayka.types import NO_LEADER, AbortedTransaction, FetchResult, FileSlice, TopicPartition

_LEADER_TAG: Final = 1
_HEAD: Final = struct.Struct(">ihi")
_ABORTED: Final = struct.Struct(">qq")
_NO_REPLICA: Final = INT32.pack(NO_LEADER)
# Partition, error, high watermark, [last stable offset, [log start offset]].
_V0: Final = struct.Struct(">ihq")
_V4: Final = struct.Struct(">ihqq")
_V5: Final = struct.Struct(">ihqqq")

Answered = tuple[SessionPartition, TopicPartition | None, FetchResult]


class FetchResponse:
    """A response being written."""

    def __init__(self, correlation_id: int, version: int, hints: LeaderHints) -> None:
        self._version = version
        self._flexible = version >= FIRST_FLEXIBLE
        self._hints = hints
        self._out = response_head(correlation_id, self._flexible)
        self._records: list[tuple[int, FileSlice | bytes]] = []

    def write(self, error: ErrorCode, session_id: int, answered: Iterable[Answered]) -> None:
        """Write the whole body."""
        version, out = self._version, self._out
        if version >= FIRST_WITH_SESSIONS:
            out += _HEAD.pack(0, error, session_id)
        elif version >= 1:
            out += INT32.pack(0)
        topics = [(topic, list(group)) for topic, group in groupby(answered, key=lambda entry: entry[0].topic)]
        self._write_size(len(topics))
        for topic, group in topics:
            out += self._topic(topic)
            self._write_size(len(group))
            for partition, topic_partition, result in group:
                self._write_result(partition.partition, topic_partition, result)
            if self._flexible:
                out.append(0)
        if self._flexible:
            out += self._hints.node_endpoints() if version >= 16 else b"\0"

    def _topic(self, topic: TopicKey) -> bytes:
        if self._version >= FIRST_WITH_TOPIC_ID:
            return topic.bytes if isinstance(topic, uuid.UUID) else bytes(16)
        encoded = str(topic).encode()
        return (uvarint_bytes(len(encoded) + 1) if self._flexible else INT16.pack(len(encoded))) + encoded

    def _write_result(self, number: int, topic_partition: TopicPartition | None, result: FetchResult) -> None:
        out, version = self._out, self._version
        if version >= 5:
            out += _V5.pack(
                number, result.error, result.high_watermark, result.last_stable_offset, result.log_start_offset
            )
        elif version == 4:
            out += _V4.pack(number, result.error, result.high_watermark, result.last_stable_offset)
        else:
            out += _V0.pack(number, result.error, result.high_watermark)
        if version >= 4:
            self._write_aborted(result.aborted_transactions)
        if version >= 11:
            out += _NO_REPLICA
        self._write_records(result)
        if self._flexible:
            out += self._hints.tags(result.error, topic_partition, _LEADER_TAG)

    def _write_aborted(self, aborted: tuple[AbortedTransaction, ...] | None) -> None:
        if aborted is None:
            self._out += b"\0" if self._flexible else INT32.pack(-1)
            return
        self._write_size(len(aborted))
        for transaction in aborted:
            self._out += _ABORTED.pack(*transaction)
            if self._flexible:
                self._out.append(0)

    def _write_records(self, result: FetchResult) -> None:
        self._write_size(result.size)
        if result.records is not None:
            self._records.append((len(self._out), result.records))

    def _write_size(self, size: int) -> None:
        self._out += uvarint_bytes(size + 1) if self._flexible else INT32.pack(size)

    def assemble(self) -> tuple[bytearray, list[Piece]]:
        """The frame, and the pieces of it that are still to be read from segments."""
        out = self._out
        if not self._records:
            INT32.pack_into(out, 0, len(out) - 4)
            return out, []
        sizes = [source.size if isinstance(source, FileSlice) else len(source) for _, source in self._records]
        frame = bytearray(len(out) + sum(sizes))
        view = memoryview(frame)
        pieces = []
        done = written = 0
        for (position, source), size in zip(self._records, sizes, strict=True):
            begin = written + position - done
            view[written:begin] = out[done:position]
            done, written = position, begin + size
            if isinstance(source, FileSlice):
                pieces.append(Piece(source, view[begin:written]))
            else:
                view[begin:written] = source
        view[written:] = out[done:]
        INT32.pack_into(frame, 0, len(frame) - 4)
        return frame, pieces
