"""Keys go to the same partition as with every other Kafka client."""

from __future__ import annotations

from collections import Counter

import pytest
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from rayka.client.producer.partitioner import StickyPartition, key_partition, random_partition
from rayka.murmur2 import murmur2

# The vectors of Kafka's own UtilsTest.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), KNOWN.items())
def test_murmur2_of_known_keys(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


def test_murmur2_equals_kafka_pythons() -> None:
    for size in range(70):
        key = bytes(number * 37 % 256 for number in range(size, 2 * size))
        assert murmur2(key) == kafka_python_murmur2(key) % 2**32


def test_librdkafka_sends_a_key_to_the_same_partition() -> None:
    """librdkafka's unit test of its murmur2 partitioner has these vectors."""
    vectors = {b"kafka": 0xD067CF64, b"giberish123456789": 0x8F552B0C, b"1234": 0x9FC97B14, b"234": 0xE7C009CA}
    assert {key: murmur2(key) & 0x7FFFFFFF for key in vectors} == {
        key: hash_ & 0x7FFFFFFF for key, hash_ in vectors.items()
    }


def test_a_key_has_one_partition() -> None:
    keys = [b"", b"a", b"k" * 64, b"k" * 65, b"long" * 1000]
    assert [key_partition(key, 7) for key in keys] == [key_partition(key, 7) for key in keys]
    assert Counter(key_partition(b"%d" % number, 4) for number in range(4000)).keys() == {0, 1, 2, 3}


def test_the_sticky_partition_moves_after_a_batch_of_bytes() -> None:
    sticky = StickyPartition(1000)
    first = [sticky.next(100, [0, 1, 2]) for _ in range(10)]
    assert len(set(first)) == 1
    assert sticky.next(100, [0, 1, 2]) != first[0]
    assert {sticky.next(1000, [0, 1, 2]) for _ in range(100)} == {0, 1, 2}


def test_a_single_available_partition_is_kept() -> None:
    sticky = StickyPartition(10)
    assert {sticky.next(100, [3]) for _ in range(5)} == {3}


def test_the_partitioner_of_the_first_kafka() -> None:
    partitions = range(8)
    assert random_partition(b"key", partitions, partitions) == key_partition(b"key", 8)
    assert {random_partition(None, partitions, [2, 5]) for _ in range(100)} == {2, 5}
