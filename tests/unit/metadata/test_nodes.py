"""Brokers and actors as they come, go and come back, and who leads then."""

from __future__ import annotations

import uuid

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import ActorRegistration, AssignReplicasToDirs, BrokerRegistration, NewTopic
from rayka.metadata.values import LOST
from tests.unit.metadata.cluster import DIRECTORY, Cluster


@pytest.fixture
def cluster() -> Cluster:
    """One broker with two actors, a topic of four partitions, two on each."""
    cluster = Cluster()
    cluster.add_broker()
    cluster.create(NewTopic("orders", 4))
    return cluster


@pytest.fixture
def three() -> Cluster:
    """Three brokers with one actor each, and one partition with three replicas."""
    cluster = Cluster()
    for _ in range(3):
        cluster.add_broker(actors=1)
    cluster.create(NewTopic("orders", assignments={0: [1, 2, 3]}))
    return cluster


def test_broker_ids_begin_with_one_and_are_not_given_twice() -> None:
    cluster = Cluster()
    assert [cluster.add_broker(actors=0) for _ in range(3)] == [1, 2, 3]
    cluster.run(cluster.controller.unregister_broker(3))
    assert cluster.add_broker(actors=0) == 4


def test_a_node_that_comes_back_with_its_directory_keeps_its_id(cluster: Cluster) -> None:
    back = BrokerRegistration("other-node", "elsewhere", 9999, directory_ids=("new", "dir-1"), log_dirs=("/moved",))
    assert cluster.run(cluster.controller.register_broker(back)).broker_id == 1
    broker = cluster.image.brokers[1]
    assert (broker.host, broker.port, broker.epoch) == ("elsewhere", 9999, 1)


def test_without_directory_ids_host_and_a_common_path_tell_the_node() -> None:
    cluster = Cluster()
    for node, host, log_dirs, broker_id in (
        ("n1", "h1", ("/a",), 1),
        ("n2", "h2", ("/a",), 2),
        ("n3", "h1", ("/b", "/a"), 1),
    ):
        registration = BrokerRegistration(node, host, 9092, log_dirs=log_dirs)
        assert cluster.run(cluster.controller.register_broker(registration)).broker_id == broker_id


def test_a_node_that_was_down_may_come_back_under_another_host_name() -> None:
    cluster = Cluster()
    registrations = [BrokerRegistration(f"n{index}", f"h{index}", 9092, log_dirs=("/a",)) for index in range(3)]
    assert cluster.run(cluster.controller.register_broker(registrations[0])).broker_id == 1
    assert cluster.run(cluster.controller.register_broker(registrations[1])).broker_id == 2
    cluster.run(cluster.controller.broker_died(1))
    assert cluster.run(cluster.controller.register_broker(registrations[2])).broker_id == 1


def test_an_id_that_a_living_node_has_is_refused(cluster: Cluster) -> None:
    intruder = BrokerRegistration("other", "h", 1, broker_id=1, directory_ids=("foreign",))
    with pytest.raises(RaykaError) as caught:
        cluster.controller.register_broker(intruder)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.run(cluster.controller.broker_died(1))
    assert cluster.run(cluster.controller.register_broker(intruder)).broker_id == 1


def test_a_directory_of_one_broker_cannot_serve_as_another(cluster: Cluster) -> None:
    with pytest.raises(RaykaError, match="belong to broker 1"):
        cluster.controller.register_broker(BrokerRegistration("n", "h", 1, broker_id=5, directory_ids=("dir-1",)))


def test_registering_twice_changes_nothing(cluster: Cluster) -> None:
    before = cluster.image
    assert cluster.add_broker(broker_id=1) == 1
    assert cluster.image is before


def test_a_restarted_node_leads_nothing_until_its_actors_are_there(cluster: Cluster) -> None:
    cluster.add_broker(actors=0, life=2, broker_id=1)
    assert not any(actor.online for actor in cluster.image.actors.values())
    assert all(partition.leader == -1 for partition in cluster.image.topics["orders"].partitions)
    cluster.start_actor("a1-0", 1, life=2)
    cluster.start_actor("a1-1", 1, life=2)
    partitions = cluster.image.topics["orders"].partitions
    assert all((partition.leader, partition.leader_epoch) == (1, 2) for partition in partitions)


def test_a_dead_actor_leaves_its_partitions_without_leader_but_in_sync(cluster: Cluster) -> None:
    cluster.run(cluster.controller.actor_died("a1-0"))
    for partition in cluster.image.topics["orders"].partitions:
        if partition.actors == ("a1-0",):
            assert (partition.leader, partition.leader_epoch, partition.isr) == (-1, 1, (1,))
            assert partition.leader_actor is None
        else:
            assert (partition.leader, partition.leader_epoch) == (1, 0)


def test_an_actor_that_restarts_unnoticed_leads_in_a_new_epoch(cluster: Cluster) -> None:
    assert cluster.start_actor("a1-0", 1, life=2) == 2
    epochs = {partition.actors[0]: partition.leader_epoch for partition in cluster.image.topics["orders"].partitions}
    assert epochs == {"a1-0": 1, "a1-1": 0}


def test_a_registration_delivered_twice_counts_once(cluster: Cluster) -> None:
    cluster.start_actor("a1-0", 1, life=2)
    before = cluster.image
    assert cluster.start_actor("a1-0", 1, life=2) == 2
    assert cluster.image is before


def test_an_actor_that_was_taken_for_dead_registers_again_and_leads(cluster: Cluster) -> None:
    cluster.run(cluster.controller.actor_died("a1-0", epoch=1))
    assert cluster.start_actor("a1-0", 1, life=1) == 1, "its clients know its process by this epoch"
    assert cluster.image.actors["a1-0"].online
    for partition in cluster.image.topics["orders"].partitions:
        if partition.actors == ("a1-0",):
            assert (partition.leader, partition.leader_epoch) == (1, 2)


def test_news_of_an_earlier_death_changes_nothing(cluster: Cluster) -> None:
    cluster.start_actor("a1-0", 1, life=2)
    before = cluster.image
    cluster.run(cluster.controller.actor_died("a1-0", epoch=1))
    cluster.run(cluster.controller.actor_died("unheard-of"))
    assert cluster.image is before
    cluster.run(cluster.controller.actor_died("a1-0", epoch=2))
    assert not cluster.image.actors["a1-0"].online


def test_an_actor_belongs_to_a_registered_broker_and_to_one(cluster: Cluster) -> None:
    with pytest.raises(RaykaError, match="BROKER_ID_NOT_REGISTERED"):
        cluster.controller.register_actor(ActorRegistration("new", 9, "/", "i"))
    other = cluster.add_broker(actors=0)
    with pytest.raises(RaykaError, match="belongs to broker 1"):
        cluster.controller.register_actor(ActorRegistration("a1-0", other, "/", "i"))


def test_the_next_replica_in_sync_leads(three: Cluster) -> None:
    three.run(three.controller.broker_died(1))
    partition = three.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (2, 3))
    assert three.image.brokers[1].fenced


def test_a_follower_that_goes_costs_no_leader_epoch(three: Cluster) -> None:
    three.run(three.controller.actor_died("a3-0"))
    partition = three.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (1, 2))
    assert partition.partition_epoch == 1


def test_only_the_last_replica_in_sync_may_lead_again(three: Cluster) -> None:
    for broker_id in (1, 2, 3):
        three.run(three.controller.broker_died(broker_id))
    assert (three.partition("orders").leader, three.partition("orders").isr) == (-1, (3,))
    three.add_broker(actors=1, life=2, broker_id=1)
    assert three.partition("orders").leader == -1
    three.add_broker(actors=1, life=2, broker_id=3)
    assert (three.partition("orders").leader, three.partition("orders").isr) == (3, (3,))


def test_where_the_topic_allows_it_any_replica_leads() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.add_broker(actors=1)
    configs = {"unclean.leader.election.enable": "true"}
    cluster.create(NewTopic("orders", assignments={0: [1, 2]}, configs=configs))
    cluster.run(cluster.controller.broker_died(2))
    cluster.run(cluster.controller.broker_died(1))
    cluster.add_broker(actors=1, life=2, broker_id=2)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.isr) == (2, (2,))


def test_a_broker_with_replicas_cannot_be_forgotten(cluster: Cluster) -> None:
    with pytest.raises(RaykaError, match="still holds replicas"):
        cluster.controller.unregister_broker(1)
    cluster.run(cluster.controller.delete_topics(["orders"]))
    cluster.run(cluster.controller.unregister_broker(1))
    assert not cluster.image.brokers
    assert not cluster.image.actors
    with pytest.raises(RaykaError, match="BROKER_ID_NOT_REGISTERED"):
        cluster.controller.unregister_broker(1)


def test_only_an_empty_actor_retires(cluster: Cluster) -> None:
    with pytest.raises(RaykaError, match="still holds replicas"):
        cluster.controller.retire_actor("a1-0")
    cluster.start_actor("spare", 1)
    cluster.run(cluster.controller.retire_actor("spare"))
    assert "spare" not in cluster.image.actors


def test_producer_ids_come_in_blocks_that_do_not_overlap(cluster: Cluster) -> None:
    blocks = [cluster.run(cluster.controller.allocate_producer_ids(1)) for _ in range(3)]
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]


def assign(cluster: Cluster, directory_id: uuid.UUID, life: int = 1) -> None:
    """Actor a1-0 reports that its replicas are in this directory."""
    replicas = {
        (topic.topic_id, partition.partition): directory_id
        for topic, partition in cluster.image.replicas_of_actor("a1-0")
    }
    request = AssignReplicasToDirs("a1-0", f"life-{life}", replicas)
    cluster.run(cluster.controller.assign_replicas_to_dirs(request))


def led(cluster: Cluster) -> list[int]:
    """Which partitions of actor a1-0 have a leader."""
    return [partition.partition for _, partition in cluster.image.replicas_of_actor("a1-0") if partition.leader != -1]


def test_a_replica_is_offline_while_its_directory_is_missing(cluster: Cluster) -> None:
    mine = led(cluster)
    assign(cluster, DIRECTORY)
    assert led(cluster) == mine
    cluster.start_actor("a1-0", 1, life=2, directory_id=uuid.UUID(int=99))
    assert led(cluster) == []
    assert all(partition.isr == (1,) for _, partition in cluster.image.replicas_of_actor("a1-0"))
    cluster.start_actor("a1-0", 1, life=3)
    assert led(cluster) == mine


def test_a_replica_that_was_never_created_may_be_created_in_another_directory(cluster: Cluster) -> None:
    mine = led(cluster)
    cluster.start_actor("a1-0", 1, life=2, directory_id=uuid.UUID(int=99))
    assert led(cluster) == mine


def test_a_lost_replica_is_offline_until_its_files_are_back(cluster: Cluster) -> None:
    mine = led(cluster)
    assign(cluster, DIRECTORY)
    epochs = [partition.leader_epoch for _, partition in cluster.image.replicas_of_actor("a1-0")]
    assign(cluster, LOST)
    assert led(cluster) == []
    cluster.start_actor("a1-0", 1, life=2)
    assert led(cluster) == []
    assign(cluster, DIRECTORY, life=2)
    assert led(cluster) == mine
    after = [partition.leader_epoch for _, partition in cluster.image.replicas_of_actor("a1-0")]
    assert all(new > old for new, old in zip(after, epochs, strict=True))


def test_a_report_of_an_earlier_start_of_the_actor_is_refused(cluster: Cluster) -> None:
    cluster.start_actor("a1-0", 1, life=2)
    with pytest.raises(RaykaError, match="INVALID_REGISTRATION"):
        assign(cluster, LOST, life=1)


def test_the_directory_of_a_replica_is_reported_once(cluster: Cluster) -> None:
    assign(cluster, DIRECTORY)
    before = cluster.image
    assign(cluster, DIRECTORY)
    assert cluster.image is before
