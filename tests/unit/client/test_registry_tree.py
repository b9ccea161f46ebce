"""The registry's paths."""

from __future__ import annotations

import uuid

import pytest

from rayka.client.admin.group_offsets import GroupDescription, GroupOffset, MemberDescription
from rayka.client.admin.registry_tree import is_below, registry
from rayka.metadata.image import BrokerImage, PartitionImage, TopicImage
from rayka.types import TopicPartition

NODE = BrokerImage(broker_id=1, host="h", port=9092, rack=None, fenced=False, node_id="n", epoch=1)


def test_the_tree_has_the_paths_that_kafka_had_in_zookeeper() -> None:
    partition = PartitionImage(
        partition=0, leader=1, leader_epoch=3, replicas=(1,), isr=(1,), partition_epoch=0, actors=("a",)
    )
    topic = TopicImage(name="t", topic_id=uuid.UUID(int=1), partitions=(partition,), is_internal=False)
    place = TopicPartition("t", 0)
    old, new = (
        MemberDescription("old/1", None, "c", "/h", (place,)),
        MemberDescription("new", None, "c", "/h", (place,)),
    )
    offsets = (GroupOffset(place, 4, 9, old), GroupOffset(place, 4, 9, new), GroupOffset(TopicPartition("gone", 1), 7))
    group = GroupDescription("a/b", "Classic", "Stable", "range", NODE, (old, new), offsets)
    member = {"version": 1, "client_id": "c", "host": "/h"}
    assert list(registry([NODE], [topic], [group])) == [
        ("/brokers/ids/1", {"version": 1, "host": "h", "port": 9092, "jmx_port": -1}),
        ("/brokers/topics/t", {"version": 1, "partitions": {"0": [1]}}),
        ("/brokers/topics/t/partitions/0/state", {"version": 1, "leader": 1, "leader_epoch": 3, "isr": [1]}),
        ("/consumers/a%2Fb/ids/old%2F1", member),
        ("/consumers/a%2Fb/ids/new", member),
        ("/consumers/a%2Fb/offsets/t/0", 4),
        ("/consumers/a%2Fb/offsets/gone/1", 7),
        ("/consumers/a%2Fb/owners/t/0", "new"),
    ]


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [("/a/b", "/", True), ("/a/b", "/a", True), ("/a/b", "/a/b/", True), ("/ab", "/a", False), ("/a", "/a/b", False)],
)
def test_what_is_below_a_path(path: str, root: str, below: bool) -> None:
    assert is_below(path, root) is below
