"""The image as a value, its snapshot, and what those who follow it get."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from rayka.errors import RaykaError
from rayka.metadata.commands import NewTopic
from rayka.metadata.controller import KEPT_BATCHES, Changes, Controller, HistoryLost, Position, RemovedTopic
from rayka.metadata.features import NEW_CLUSTER_FEATURES
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import PartitionChangeRecord
from rayka.metadata.snapshot import snapshot_records
from tests.unit.metadata.cluster import Cluster


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    for _ in range(3):
        cluster.add_broker()
    cluster.create(NewTopic("one", 3, 2, configs={"retention.ms": "5"}), NewTopic("two", 2))
    cluster.run(cluster.controller.broker_died(2))
    cluster.run(cluster.controller.allocate_producer_ids(1))
    cluster.run(cluster.controller.delete_topics(["two"]))
    return cluster


def test_an_image_does_not_change(cluster: Cluster) -> None:
    before = cluster.image
    copy = pickle.loads(pickle.dumps(before))
    cluster.create(NewTopic("three"))
    cluster.run(cluster.controller.actor_died("a1-0"))
    assert before == copy
    assert cluster.image.version == before.version + 2


def test_a_snapshot_gives_the_image_again(cluster: Cluster) -> None:
    restored = MetadataImage().apply_all(snapshot_records(cluster.image))
    assert replace(restored, version=cluster.image.version) == cluster.image


def test_a_snapshot_names_the_deleted_topics_that_had_tiered_storage() -> None:
    cluster = Cluster({"remote.log.storage.system.enable": "true", "rsm.config.url": "file:///store"})
    cluster.add_broker()
    cluster.create(NewTopic("tiered", configs={"remote.storage.enable": "true"}), NewTopic("plain"))
    topic_id = cluster.image.topics["tiered"].topic_id
    cluster.run(cluster.controller.delete_topics(["tiered"]))
    cluster.run(cluster.controller.delete_topics(["plain"]))

    assert list(cluster.image.deleted_tiered_topics) == [topic_id]
    restored = MetadataImage().apply_all(snapshot_records(cluster.image))
    assert list(restored.deleted_tiered_topics) == [topic_id]


def test_a_snapshot_remembers_the_ids_of_brokers_that_are_gone() -> None:
    cluster = Cluster()
    cluster.add_broker(actors=0)
    cluster.run(cluster.controller.unregister_broker(1))
    restored = MetadataImage().apply_all(snapshot_records(cluster.image))
    assert restored.next_broker_id == 2


def at(version: int, incarnation: str = "") -> Position:
    return Position("test", incarnation, version)


def test_a_follower_gets_the_batches_that_it_lacks(cluster: Cluster) -> None:
    version = cluster.image.version
    assert cluster.controller.changes_since(at(version)) == Changes(at(version), None, ())
    assert cluster.controller.changes_since(at(version - 2)) == Changes(at(version), None, tuple(cluster.log[-2:]))
    assert cluster.controller.changes_since(at(0)) == Changes(at(version), None, tuple(cluster.log))


def test_a_follower_that_is_too_far_behind_or_new_gets_the_image(cluster: Cluster) -> None:
    assert cluster.controller.changes_since(Position()) == Changes(at(cluster.image.version), cluster.image, ())
    for _ in range(KEPT_BATCHES):
        cluster.run(cluster.controller.allocate_producer_ids(1))
    assert cluster.controller.changes_since(at(1)).snapshot == cluster.image
    assert len(cluster.controller.changes_since(at(cluster.image.version - KEPT_BATCHES)).batches) == KEPT_BATCHES


def test_a_follower_with_replicas_hears_beside_the_image_which_topics_were_deleted_since(cluster: Cluster) -> None:
    """Without that it could only keep their files: that an image lacks a topic is no deletion."""
    cluster.create(NewTopic("three"))
    topic_id, before = cluster.image.topics["three"].topic_id, cluster.image.version
    cluster.run(cluster.controller.delete_topics(["three"]))
    deleted = cluster.image.version
    for _ in range(KEPT_BATCHES):
        cluster.run(cluster.controller.allocate_producer_ids(1))
    changes_since = cluster.controller.changes_since
    assert changes_since(at(before), has_replicas=True).removed == (RemovedTopic(deleted, topic_id),)
    assert changes_since(at(deleted), has_replicas=True).removed == ()
    assert len(changes_since(Position(), has_replicas=True).removed) == 2
    assert changes_since(at(before)).removed == ()


def test_a_follower_that_is_ahead_of_the_log_shows_that_the_log_went_back(cluster: Cluster) -> None:
    with pytest.raises(HistoryLost, match=f"version {cluster.image.version + 5}"):
        cluster.controller.changes_since(at(cluster.image.version + 5))


def test_a_log_that_went_back_is_noticed_even_when_it_has_grown_again(cluster: Cluster) -> None:
    """The follower heard of version n from the start before this one, whose log then ended below n."""
    seen = at(cluster.image.version, "before")
    again = Controller(replace(cluster.image, version=seen.version - 1), {}, incarnation="now")
    again.replay(again.allocate_producer_ids(1).records)
    again.replay(again.allocate_producer_ids(1).records)
    assert again.image.version > seen.version
    with pytest.raises(HistoryLost):
        again.changes_since(seen)


def test_a_follower_of_another_cluster_is_refused(cluster: Cluster) -> None:
    with pytest.raises(RaykaError, match="INCONSISTENT_CLUSTER_ID"):
        cluster.controller.changes_since(Position("other", "", cluster.image.version))


def test_a_controller_that_starts_again_knows_everything_but_the_batches(cluster: Cluster) -> None:
    again = Controller(cluster.image, {}, incarnation="now")
    version = cluster.image.version
    assert again.image == cluster.image
    assert again.changes_since(at(version, "before")) == Changes(at(version, "now"), None, ())
    assert again.changes_since(at(version - 1, "before")).snapshot == cluster.image


def test_a_cluster_is_named_once() -> None:
    cluster = Cluster()
    assert cluster.controller.create_cluster("other").records == ()
    assert cluster.image.cluster_id == "test"


def test_features_are_finalized_with_the_cluster() -> None:
    controller = Controller(MetadataImage(), {})
    controller.replay(controller.create_cluster("c", {"transaction.version": 2}).records)
    assert controller.image.features == {"transaction.version": 2}


def test_a_new_cluster_has_transactions_and_share_groups() -> None:
    assert NEW_CLUSTER_FEATURES == {"transaction.version": 2, "share.version": 1}


def test_a_record_about_nothing_is_a_damaged_log(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="unknown topic id"):
        cluster.image.apply(PartitionChangeRecord(cluster.ids(1)[0], 0, {"leader": 1}))
    topic_id = cluster.image.topics["one"].topic_id
    with pytest.raises(ValueError, match="unknown partition"):
        cluster.image.apply(PartitionChangeRecord(topic_id, 77, {"leader": 1}))
