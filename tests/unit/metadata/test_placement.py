"""Where replicas go: brokers round robin over racks, then the actor with the fewest replicas."""

from __future__ import annotations

from collections import Counter

import pytest

from rayka.metadata.commands import NewTopic
from rayka.metadata.image import BrokerImage
from rayka.metadata.placement import alternate_racks
from tests.unit.metadata.cluster import Cluster


def cluster_of(racks: list[str | None], actors: int = 1) -> Cluster:
    cluster = Cluster()
    for rack in racks:
        cluster.add_broker(actors=actors, rack=rack)
    return cluster


def test_leaders_and_replicas_are_spread_evenly() -> None:
    cluster = cluster_of([None] * 5)
    cluster.create(NewTopic("orders", 50, 3))
    partitions = cluster.image.topics["orders"].partitions
    assert set(Counter(partition.leader for partition in partitions).values()) == {10}
    assert set(Counter(broker for partition in partitions for broker in partition.replicas).values()) == {30}


def test_the_followers_of_one_leader_differ() -> None:
    cluster = cluster_of([None] * 5)
    cluster.create(NewTopic("orders", 50, 2))
    followers = Counter(partition.replicas for partition in cluster.image.topics["orders"].partitions)
    assert len(followers) == 20
    assert max(followers.values()) <= 3


def test_the_next_topic_begins_where_the_last_one_ended() -> None:
    cluster = cluster_of([None] * 3)
    cluster.create(NewTopic("one", 1))
    cluster.create(NewTopic("two", 1), NewTopic("three", 1))
    assert [cluster.partition(topic).leader for topic in ("one", "two", "three")] == [1, 2, 3]


@pytest.mark.parametrize("racks", [["a", "a", "b", "b", "c", "c"], ["a", "b", "c", "a", "b", "c"]])
def test_no_rack_holds_two_replicas_while_another_holds_none(racks: list[str | None]) -> None:
    cluster = cluster_of(racks)
    cluster.create(NewTopic("orders", 24, 3))
    for partition in cluster.image.topics["orders"].partitions:
        assert len({racks[broker_id - 1] for broker_id in partition.replicas}) == 3


def test_more_replicas_than_racks_are_shared_out() -> None:
    racks: list[str | None] = ["a", "a", "a", "b"]
    cluster = cluster_of(racks)
    cluster.create(NewTopic("orders", 12, 3))
    for partition in cluster.image.topics["orders"].partitions:
        assert {racks[broker_id - 1] for broker_id in partition.replicas} == {"a", "b"}


def test_racks_alternate() -> None:
    brokers = [BrokerImage(n, "h", 1, rack, False, "", 0) for n, rack in enumerate(["a", "a", "b", None, "b", "b"])]
    assert [broker.rack for broker in alternate_racks(brokers)] == [None, "a", "b", "a", "b", "b"]


def test_empty_actors_are_filled_first_then_shared_evenly() -> None:
    cluster = cluster_of([None], actors=4)
    cluster.create(NewTopic("one", 3))
    used = {partition.actors for partition in cluster.image.topics["one"].partitions}
    assert len(used) == 3
    cluster.create(NewTopic("two", 9))
    load = Counter(p.actors[0] for topic in cluster.image.topics.values() for p in topic.partitions)
    assert set(load.values()) == {3}


def test_an_actor_that_is_down_gets_nothing_new() -> None:
    cluster = cluster_of([None], actors=2)
    cluster.run(cluster.controller.actor_died("a1-0"))
    cluster.create(NewTopic("orders", 4))
    assert {partition.actors for partition in cluster.image.topics["orders"].partitions} == {("a1-1",)}


def test_a_new_broker_without_actors_gets_nothing_yet() -> None:
    cluster = cluster_of([None])
    cluster.add_broker(actors=0)
    cluster.create(NewTopic("orders", 4))
    assert {partition.leader for partition in cluster.image.topics["orders"].partitions} == {1}
