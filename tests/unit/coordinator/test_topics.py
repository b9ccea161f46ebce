"""What groups derive from the cluster's topics. The hashes are those that Apache Kafka 4.4.0 wrote."""

from __future__ import annotations

import uuid

import pytest

from rayka.coordinator.spec import java_hash, partition_for
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode, RaykaError

ORDERS = TopicMetadata(uuid.UUID("e91fcfa2-c25b-4171-b16c-2ed86ea38b7c"), "orders", 4)
OTHER = TopicMetadata(uuid.UUID("bc3a19e8-6cea-408c-a934-b6b34561318d"), "other", 3)


def test_the_hash_of_a_groups_topics_is_kafkas() -> None:
    topics = Topics([ORDERS, OTHER])
    assert topics.group_hash(["orders"]) == -7323747437242874850
    assert topics.group_hash(["other", "orders", "orders", "unknown"]) == -3223453960094609008
    assert topics.group_hash(["unknown"]) == 0


def test_partitions_and_racks_count() -> None:
    hashes = {
        Topics([topic]).group_hash(["orders"])
        for topic in (
            ORDERS,
            ORDERS._replace(num_partitions=5),
            ORDERS._replace(racks=(("a",), ("a",), ("b",), ("b",))),
            ORDERS._replace(racks=(("a",), ("a",), ("a",), ("b",))),
        )
    }
    assert len(hashes) == 4
    assert Topics([ORDERS._replace(racks=(("b", "a"),) * 4)]).group_hash(["orders"]) == Topics(
        [ORDERS._replace(racks=(("a", "b"),) * 4)]
    ).group_hash(["orders"])


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("o.*", {"orders", "other"}),
        ("order", set()),
        ("(^orders$)", {"orders"}),
        ("", set()),
        ("[a-o]rders", {"orders"}),
    ],
)
def test_patterns_match_whole_names(pattern: str, matching: set[str]) -> None:
    assert Topics([ORDERS, OTHER]).matching(pattern) == matching


@pytest.mark.parametrize("pattern", ["(", "a{5,2}", "(?=x)", r"(a)\1"])
def test_invalid_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(RaykaError) as caught:
        Topics().matching(pattern)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    ("group_id", "java", "partition"),
    [
        ("", 0, 0),
        ("g", 103, 3),
        ("group-1", 293427299, 49),
        ("ünïcödé", -609221899, 49),
        ("日本", 835047, 47),
        ("polygenelubricants", -2147483648, 0),
        ("😀x", 54959989, 39),
    ],
)
def test_groups_have_their_partitions_as_in_kafka(group_id: str, java: int, partition: int) -> None:
    assert (java_hash(group_id), partition_for(group_id, 50)) == (java, partition)
