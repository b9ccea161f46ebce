"""The cluster's topics as coordinators see them. The shell creates a new one when the metadata changes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import re2
import xxhash

from rayka.errors import ErrorCode, RaykaError

_INT32 = struct.Struct("<i")
_UINT64 = struct.Struct("<Q")
_TOPIC_HASH_VERSION = b"\0"


class TopicMetadata(NamedTuple):
    """`racks` has, for each partition, the racks of its replicas; empty if none is known."""

    topic_id: uuid.UUID
    name: str
    num_partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


class Topics:
    """All topics, by name and by id. `version` is the metadata version that they were taken from.

    What is derived from them for a group (the hash of its topics, the matches of its patterns) is kept here, since many
    groups ask for the same.
    """

    def __init__(self, topics: Iterable[TopicMetadata] = (), version: int = 0) -> None:
        self.version = version
        self.by_name = {topic.name: topic for topic in topics}
        self.by_id = {topic.topic_id: topic for topic in self.by_name.values()}
        self._hashes: dict[str, int] = {}
        self._matches: dict[str, frozenset[str]] = {}

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic; None if it does not exist."""
        topic = self.by_id.get(topic_id)
        return None if topic is None else topic.name

    def ids_of(self, names: Iterable[str]) -> frozenset[uuid.UUID]:
        """The ids of those topics that exist."""
        return frozenset(self.by_name[name].topic_id for name in names if name in self.by_name)

    def partition_counts(self, topic_ids: Iterable[uuid.UUID]) -> Mapping[uuid.UUID, int]:
        """How many partitions each of these topics has."""
        return {topic_id: self.by_id[topic_id].num_partitions for topic_id in topic_ids}

    def group_hash(self, names: Iterable[str]) -> int:
        """A signed 64-bit hash of these topics' ids, names, partitions and racks; 0 for none (KIP-1101)."""
        known = sorted(name for name in set(names) if name in self.by_name)
        if not known:
            return 0
        return _signed(xxhash.xxh3_64_intdigest(b"".join(_UINT64.pack(self._topic_hash(name)) for name in known)))

    def _topic_hash(self, name: str) -> int:
        if name not in self._hashes:
            self._hashes[name] = topic_hash(self.by_name[name])
        return self._hashes[name]

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics whose whole name matches. Raises INVALID_REGULAR_EXPRESSION."""
        if pattern not in self._matches:
            compiled = compile_pattern(pattern)
            self._matches[pattern] = frozenset(name for name in self.by_name if compiled.fullmatch(name))
        return self._matches[pattern]


def compile_pattern(pattern: str, field: str = "SubscribedTopicRegex") -> re2._Regexp:
    """A pattern in RE2's syntax, which takes time linear in what it reads; `field` of a request has it.

    Raises INVALID_REGULAR_EXPRESSION.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = f"{field} `{pattern}` is not a valid regular expression: {_text(error)}."
        raise RaykaError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason) from None


def topic_hash(topic: TopicMetadata) -> int:
    """Kafka's hash of one topic: XXH3 over the fields as its hashing library lays them out."""
    parts = [
        _TOPIC_HASH_VERSION,
        _UINT64.pack(topic.topic_id.int >> 64),
        _UINT64.pack(topic.topic_id.int & 0xFFFFFFFFFFFFFFFF),
        _hashed_text(topic.name),
        _INT32.pack(topic.num_partitions),
    ]
    for partition in range(topic.num_partitions):
        parts.append(_INT32.pack(partition))
        for rack in sorted(topic.racks[partition]) if topic.racks else ():
            text = _hashed_text(rack)
            parts += [text[-_INT32.size :], text]
    return xxhash.xxh3_64_intdigest(b"".join(parts))


def _hashed_text(text: str) -> bytes:
    """UTF-16 code units and then their number."""
    data = text.encode("utf-16-le", "surrogatepass")
    return data + _INT32.pack(len(data) // 2)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
