"""The controller under random commands: whatever happens, the metadata stays sound and can be replayed."""

from __future__ import annotations

import uuid
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.errors import RaykaError
from rayka.metadata.codec import decode_all, encode_all
from rayka.metadata.commands import AssignReplicasToDirs, NewPartitions, NewTopic
from rayka.metadata.controller import Position
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import ResourceType
from rayka.metadata.snapshot import snapshot_records
from rayka.metadata.validation import validate_image
from rayka.metadata.values import LOST, UNASSIGNED
from rayka.types import NO_LEADER
from tests.support.scale import examples
from tests.unit.metadata.cluster import Cluster, alteration

NAMES = st.sampled_from(["a", "b", "c.d", "c_d", "..", "e"])
BROKERS = st.integers(1, 4)
RACKS = st.sampled_from([None, "x", "y"])


class ControllerMachine(RuleBasedStateMachine):
    """Brokers, actors and topics come and go; commands that are refused must change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster({"num.partitions": "3"})
        self.life = 1
        self.before = self.cluster.image
        self.producer_ids: set[int] = set()

    @property
    def image(self) -> MetadataImage:
        return self.cluster.image

    @initialize(racks=st.lists(RACKS, min_size=1, max_size=3))
    def start(self, racks: list[str | None]) -> None:
        for rack in racks:
            self.cluster.add_broker(actors=2, rack=rack)

    @rule(
        names=st.lists(NAMES, min_size=1, max_size=3),
        partitions=st.integers(-1, 6),
        factor=st.integers(-1, 4),
        unclean=st.booleans(),
        validate_only=st.booleans(),
    )
    def create_topics(self, names: list[str], partitions: int, factor: int, unclean: bool, validate_only: bool) -> None:
        before = self.image
        configs = {"unclean.leader.election.enable": "true"} if unclean else {}
        topics = [NewTopic(name, partitions, factor, configs=configs) for name in names]
        results = self.cluster.create(*topics, validate_only=validate_only)
        assert [result.name for result in results] == names
        created = {result.name for result in results if not result.error and not validate_only}
        assert set(self.image.topics) == set(before.topics) | created

    @rule(name=NAMES, assignment=st.lists(st.lists(BROKERS, max_size=3), min_size=1, max_size=3))
    def create_topic_by_hand(self, name: str, assignment: list[list[int]]) -> None:
        (result,) = self.cluster.create(NewTopic(name, assignments=dict(enumerate(assignment))))
        if not result.error:
            partitions = self.image.topics[name].partitions
            assert [partition.replicas for partition in partitions] == [tuple(each) for each in assignment]

    @rule(name=NAMES, count=st.integers(0, 8))
    def create_partitions(self, name: str, count: int) -> None:
        before = self.image.topics.get(name)
        (result,) = self.cluster.run(self.cluster.controller.create_partitions([NewPartitions(name, count)], False))
        if not result.error:
            assert before is not None
            assert len(self.image.topics[name].partitions) == count > len(before.partitions)

    @rule(names=st.lists(NAMES, min_size=1, max_size=2), by_id=st.booleans())
    def delete_topics(self, names: list[str], by_id: bool) -> None:
        known = self.image.topics
        wanted = [known[name].topic_id if by_id and name in known else name for name in names]
        results = self.cluster.run(self.cluster.controller.delete_topics(wanted))
        gone = {result.name for result in results if not result.error}
        assert set(self.image.topics) == set(known) - gone

    @rule(name=NAMES, value=st.sampled_from(["5", "x", "-7"]), operation=st.integers(0, 3))
    def alter_configs(self, name: str, value: str, operation: int) -> None:
        change = alteration(ResourceType.TOPIC, name, ("retention.ms", operation, value))
        self.cluster.run(self.cluster.controller.incremental_alter_configs([change], False))

    @precondition(lambda self: len(self.image.brokers) < 4)
    @rule(rack=RACKS, actors=st.integers(0, 2))
    def broker_joins(self, rack: str | None, actors: int) -> None:
        self.cluster.add_broker(actors, rack, self.life)

    @rule(broker_id=BROKERS, actors=st.integers(0, 2))
    def broker_restarts(self, broker_id: int, actors: int) -> None:
        if broker_id in self.image.brokers:
            self.life += 1
            assert self.cluster.add_broker(actors, life=self.life, broker_id=broker_id) == broker_id

    @rule(broker_id=BROKERS)
    def broker_dies(self, broker_id: int) -> None:
        self.cluster.run(self.cluster.controller.broker_died(broker_id))

    @rule(broker_id=BROKERS)
    def broker_is_forgotten(self, broker_id: int) -> None:
        before = self.image
        try:
            self.cluster.run(self.cluster.controller.unregister_broker(broker_id))
        except RaykaError:
            assert self.image is before

    @rule(broker_id=BROKERS, index=st.integers(0, 1))
    def actor_dies(self, broker_id: int, index: int) -> None:
        self.cluster.run(self.cluster.controller.actor_died(f"a{broker_id}-{index}"))

    @rule(broker_id=BROKERS, index=st.integers(0, 1))
    def actor_restarts(self, broker_id: int, index: int) -> None:
        name = f"a{broker_id}-{index}"
        if name in self.image.actors:
            self.life += 1
            before = self.image.actors[name].epoch
            assert self.cluster.start_actor(name, broker_id, self.life) == before + 1

    @rule(broker_id=BROKERS, index=st.integers(0, 1), disk=st.integers(10, 12))
    def actor_restarts_with_a_directory(self, broker_id: int, index: int, disk: int) -> None:
        name = f"a{broker_id}-{index}"
        if name in self.image.actors:
            self.life += 1
            self.cluster.start_actor(name, broker_id, self.life, uuid.UUID(int=disk))

    @rule(broker_id=BROKERS, index=st.integers(0, 1), lost=st.booleans(), count=st.integers(1, 4))
    def actor_reports_its_replicas(self, broker_id: int, index: int, lost: bool, count: int) -> None:
        name = f"a{broker_id}-{index}"
        actor = self.image.actors.get(name)
        if actor is not None and actor.online:
            replicas = [(topic.topic_id, each.partition) for topic, each in self.image.replicas_of_actor(name)]
            directories = dict.fromkeys(replicas[:count], LOST if lost else actor.directory_id)
            request = AssignReplicasToDirs(name, actor.incarnation, directories)
            self.cluster.run(self.cluster.controller.assign_replicas_to_dirs(request))

    @rule(broker_id=BROKERS)
    def producer_ids_are_given(self, broker_id: int) -> None:
        block = self.cluster.run(self.cluster.controller.allocate_producer_ids(broker_id))
        ids = set(range(block.first, block.first + block.size))
        assert ids.isdisjoint(self.producer_ids)
        self.producer_ids |= ids

    @invariant()
    def the_state_is_valid_and_follows_the_one_before(self) -> None:
        self.cluster.controller.validate_state()
        validate_image(self.image, self.before)
        self.before = self.image

    @invariant()
    def a_replica_whose_directory_is_missing_never_leads(self) -> None:
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                if partition.leader != NO_LEADER:
                    actor = self.image.actors[partition.actor_of(partition.leader)]
                    assert partition.directory_of(partition.leader) in (UNASSIGNED, actor.directory_id)

    @invariant()
    def replaying_all_records_gives_the_same_image(self) -> None:
        image = MetadataImage()
        for batch in self.cluster.log:
            image = image.apply_all(decode_all(encode_all(batch)))
        assert image == self.image

    @invariant()
    def a_snapshot_gives_the_same_image(self) -> None:
        restored = MetadataImage().apply_all(snapshot_records(self.image))
        assert replace(restored, version=self.image.version) == self.image

    @invariant()
    def a_follower_of_the_changes_has_the_same_image(self) -> None:
        changes = self.cluster.controller.changes_since(Position("test", "", 0))
        assert changes.snapshot is None
        image = MetadataImage()
        for batch in changes.batches:
            image = image.apply_all(batch)
        assert image == self.image


TestController = ControllerMachine.TestCase
TestController.settings = settings(max_examples=examples(60), stateful_step_count=30)
