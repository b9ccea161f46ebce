"""The bytes of Fetch responses, versions 0 to 18.

Everything but the records is written first, with a note of where the records of each partition belong. The records
are read from their segments when they are sent.
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
from rayka.gateway.handlers.responses import known_storage_error
from rayka.gateway.server.request import response_head
from rayka.gateway.server.response_writer import Part, SegmentPart
from rayka.gateway.server.segment_files import SegmentFiles
from rayka.gateway.wire.leader_hints import LeaderHints
from rayka.gateway.wire.reader import INT16, INT32
from rayka.types import NO_LEADER, AbortedTransaction, FetchResult, FileSlice, TopicPartition
from rayka.varint import encode_uvarint

_LEADER_TAG: Final = 1
_FIRST_WITH_STORAGE_ERROR: Final = 6
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
        return (encode_uvarint(len(encoded) + 1) if self._flexible else INT16.pack(len(encoded))) + encoded

    def _write_result(self, number: int, topic_partition: TopicPartition | None, result: FetchResult) -> None:
        out, version = self._out, self._version
        error = known_storage_error(result.error, version, _FIRST_WITH_STORAGE_ERROR)
        if version >= 5:
            out += _V5.pack(number, error, result.high_watermark, result.last_stable_offset, result.log_start_offset)
        elif version == 4:
            out += _V4.pack(number, error, result.high_watermark, result.last_stable_offset)
        else:
            out += _V0.pack(number, error, result.high_watermark)
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
        self._out += encode_uvarint(size + 1) if self._flexible else INT32.pack(size)

    @property
    def frame(self) -> bytearray:
        """The frame of a response without records; its length is still 0."""
        return self._out

    def parts(self, files: SegmentFiles) -> list[Part]:
        """The frame in parts, to be sent in order. Raises SegmentGone."""
        out = self._out
        records_size = sum(source.size if isinstance(source, FileSlice) else len(source) for _, source in self._records)
        INT32.pack_into(out, 0, len(out) - 4 + records_size)
        parts: list[Part] = []
        done = 0
        for position, records in self._records:
            parts.append(out[done:position])
            if isinstance(records, FileSlice):
                parts.append(SegmentPart(files.open(records), records.position, records.size))
            else:
                parts.append(records)
            done = position
        parts.append(out[done:])
        return parts
