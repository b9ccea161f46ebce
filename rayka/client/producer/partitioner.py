"""Which partition a record goes to.

A record with a key goes where every Kafka client would send it: murmur2 of the key, modulo the number of
partitions. Records without a key stay on one partition until it got a batch's worth of bytes and then move
to another one, chosen at random (KIP-480, KIP-794), so that batches are full.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from rayka.murmur2 import POSITIVE, murmur2

Partitioner: TypeAlias = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""`partitioner(key_bytes, all_partitions, available_partitions) -> partition`, as in kafka-python."""

_CACHED_KEYS = 16_384
_LONGEST_CACHED_KEY = 64

_cached_murmur2 = lru_cache(maxsize=_CACHED_KEYS)(murmur2)


def key_partition(key: bytes, partition_count: int) -> int:
    """The partition of a key, equal to that of Kafka's own clients. Hashes of short keys are remembered."""
    hash_ = _cached_murmur2(key) if len(key) <= _LONGEST_CACHED_KEY else murmur2(key)
    return (hash_ & POSITIVE) % partition_count


def random_partition(key: bytes | None, all_partitions: Sequence[int], available_partitions: Sequence[int]) -> int:
    """A partitioner: hash of the key, a random partition without one, as in the first Kafka."""
    if key is not None:
        return all_partitions[key_partition(key, len(all_partitions))]
    return random.choice(available_partitions or all_partitions)


class StickyPartition:
    """The partition of one topic that records without a key go to at the moment."""

    __slots__ = ("_bytes", "_switch_bytes", "partition")

    def __init__(self, switch_bytes: int) -> None:
        self._switch_bytes = switch_bytes
        self._bytes = 0
        self.partition = -1

    def next(self, size: int, available_partitions: Sequence[int]) -> int:
        """The partition for a record of `size` bytes."""
        self._bytes += size
        if self._bytes >= self._switch_bytes or self.partition < 0:
            self._bytes = 0
            self.partition = self._another(available_partitions)
        return self.partition

    def _another(self, available_partitions: Sequence[int]) -> int:
        others = [partition for partition in available_partitions if partition != self.partition]
        return random.choice(others or available_partitions)
