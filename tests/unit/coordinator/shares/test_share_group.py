"""Share groups: members, epochs, assignments, initialization, and what can be done from outside."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest
from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.groups.requests import DeleteGroupsRequest, DescribedModernGroup, ListedGroup, ListGroupsRequest
from rayka.coordinator.groups.settings import GroupSettings, ModernGroupSettings
from rayka.coordinator.groups.share.assignor import assign_simple
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.groups.share.requests import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupPartitionsRequest,
    ShareGroupStateDeletedRequest,
    ShareGroupStateInitializedRequest,
    SharePartitionToInitialize,
    TopicStartOffsets,
)
from rayka.coordinator.groups.spec import QUERIES
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode
from tests.unit.coordinator.shell import Shell

T, U = uuid.UUID(int=1), uuid.UUID(int=2)
NONE = ErrorCode.NONE
SETTINGS = GroupSettings(share=ModernGroupSettings(assignment_interval_ms=0), share_max_size=3)


class ShareGroups:
    """A group coordinator, and whoever initializes share-partitions for it."""

    def __init__(self, settings: GroupSettings = SETTINGS, partitions: int = 2) -> None:
        self.shell = Shell(settings)
        self.set_topics(t=partitions, u=1)
        self.initializes = True

    def set_topics(self, **sizes: int) -> None:
        """The cluster's topics change."""
        ids = {"t": T, "u": U}
        topics = [TopicMetadata(ids[name], name, size) for name, size in sizes.items()]
        self.shell.set_topics(Topics(topics, self.shell.topics.version + 1))

    def heartbeat(
        self, member_id: str = "m", epoch: int = 0, topics: tuple[str, ...] | None = None, **fields: Any
    ) -> ShareGroupHeartbeatResponse:
        """A heartbeat; share-partitions that it asks to initialize are initialized."""
        request = ShareGroupHeartbeatRequest("g", member_id, epoch, subscribed_topic_names=topics, **fields)
        answer: ShareGroupHeartbeatResponse = self.shell.execute(request)
        if self.initializes and answer.to_initialize:
            self.report(answer.to_initialize)
        return answer

    def report(self, partitions: tuple[SharePartitionToInitialize, ...], failed: bool = False) -> ErrorCode:
        """Share-partitions have got state, or could not."""
        found = tuple(TargetPartitions(topic_id, (number,)) for topic_id, number, _ in partitions)
        by_topic = {
            one.topic_id: tuple(n for o in found for n in o.partitions if o.topic_id == one.topic_id) for one in found
        }
        targets = tuple(TargetPartitions(*item) for item in by_topic.items())
        request = ShareGroupStateInitializedRequest("g", () if failed else targets, targets if failed else ())
        error: ErrorCode = self.shell.execute(request).error
        return error

    def join(self, member_id: str = "m", topics: tuple[str, ...] = ("t",)) -> ShareGroupHeartbeatResponse:
        """Join and take the first assignment."""
        joined = self.heartbeat(member_id, 0, topics)
        assert joined.error is NONE, joined
        return self.heartbeat(member_id, joined.member_epoch, topics)

    @property
    def group(self) -> ShareGroup:
        """The group."""
        group = self.shell.core.state.groups["g"]
        assert isinstance(group, ShareGroup)
        return group

    def described(self) -> DescribedModernGroup:
        """The group as ShareGroupDescribe has it."""
        described: DescribedModernGroup = self.query(ShareGroupDescribeRequest(("g",))).groups[0]
        return described

    def query(self, request: Any) -> Any:
        """The response to a query."""
        return QUERIES[type(request)](self.shell.core, request)


def assigned(answer: ShareGroupHeartbeatResponse) -> dict[uuid.UUID, tuple[int, ...]]:
    """An assignment by topic."""
    assert answer.assignment is not None
    return {topic.topic_id: topic.partitions for topic in answer.assignment}


def test_a_member_gets_partitions_once_they_are_initialized() -> None:
    groups = ShareGroups()
    joined = groups.heartbeat(topics=("t",))
    assert (joined.error, joined.member_id, assigned(joined)) == (NONE, "m", {})
    assert joined.to_initialize == (SharePartitionToInitialize(T, 0), SharePartitionToInitialize(T, 1))
    assert joined.heartbeat_interval_ms == SETTINGS.share_unsettled_heartbeat_interval_ms
    answer = groups.heartbeat(epoch=joined.member_epoch)
    assert assigned(answer) == {T: (0, 1)}
    assert answer.member_epoch > joined.member_epoch
    again = groups.heartbeat(epoch=answer.member_epoch)
    assert (again.member_epoch, again.assignment, again.to_initialize) == (answer.member_epoch, None, ())


def test_a_settled_member_is_told_the_groups_heartbeat_interval() -> None:
    groups = ShareGroups()
    answer = groups.join()
    groups.shell.advance(10_000)
    assert groups.heartbeat(epoch=answer.member_epoch).heartbeat_interval_ms == 5000


def test_members_share_the_partitions_and_the_group_survives_a_restart() -> None:
    groups = ShareGroups()
    first = groups.join("a")
    second = groups.join("b")
    first = groups.heartbeat("a", first.member_epoch)
    assert sorted([*assigned(first)[T], *assigned(second)[T]]) == [0, 1]
    before = groups.shell.core.state.durable()
    groups.shell.restart()
    assert groups.shell.core.state.durable() == before
    assert groups.heartbeat("a", first.member_epoch).error is NONE


def test_a_member_that_leaves_gives_its_partitions_to_the_others() -> None:
    groups = ShareGroups()
    groups.join("a")
    second = groups.join("b")
    left = groups.heartbeat("a", -1)
    assert (left.error, left.member_epoch) == (NONE, -1)
    assert assigned(groups.heartbeat("b", second.member_epoch)) == {T: (0, 1)}
    assert groups.heartbeat("a", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_without_heartbeats_is_removed() -> None:
    groups = ShareGroups()
    groups.join()
    groups.shell.advance(44_000)
    assert groups.described().group_state == "Stable"
    groups.shell.advance(2_000)
    assert (groups.described().group_state, groups.described().members) == ("Empty", ())
    assert groups.heartbeat(epoch=3).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_that_can_not_be_ended_is_ended_later() -> None:
    groups = ShareGroups()
    groups.join()
    groups.shell.fail_next = ErrorCode.NOT_ENOUGH_REPLICAS
    groups.shell.advance(50_000)
    assert groups.described().group_state == "Empty"


def test_a_heartbeat_that_can_not_be_appended_changes_nothing() -> None:
    groups = ShareGroups()
    groups.shell.fail_next = ErrorCode.NOT_ENOUGH_REPLICAS
    assert groups.heartbeat(topics=("t",)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.shell.core.state.groups == {}


def test_a_subscription_that_can_not_be_appended_counts_when_it_is_sent_again() -> None:
    groups = ShareGroups()
    joined = groups.join(topics=("t", "u"))
    before = groups.shell.core.state.durable()
    groups.shell.fail_next = ErrorCode.NOT_ENOUGH_REPLICAS
    assert groups.heartbeat(epoch=joined.member_epoch, topics=("t",)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.shell.core.state.durable() == before
    kept = groups.heartbeat(epoch=joined.member_epoch)
    assert (kept.error, kept.member_epoch, kept.assignment) == (NONE, joined.member_epoch, None)
    assert assigned(groups.heartbeat(epoch=joined.member_epoch, topics=("t",))) == {T: (0, 1)}


@pytest.mark.parametrize("epoch", [1, 99])
def test_a_member_with_another_epoch_is_fenced(epoch: int) -> None:
    groups = ShareGroups()
    answer = groups.join()
    groups.set_topics(t=3, u=1)
    for _ in range(3):
        answer = groups.heartbeat(epoch=answer.member_epoch)
    assert groups.heartbeat(epoch=epoch).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert groups.heartbeat(topics=("t",)).error is NONE, "it may join again"


def test_a_member_may_come_with_its_previous_epoch() -> None:
    groups = ShareGroups()
    joined = groups.heartbeat(topics=("t",))
    lost = groups.heartbeat(epoch=joined.member_epoch)
    again = groups.heartbeat(epoch=joined.member_epoch, topics=("t",))
    assert (again.member_epoch, again.assignment) == (lost.member_epoch, lost.assignment)


def test_requests_that_are_wrong_in_any_state_are_refused() -> None:
    groups = ShareGroups()
    assert groups.heartbeat(member_id="").error is ErrorCode.INVALID_REQUEST
    assert groups.heartbeat(epoch=-2).error is ErrorCode.INVALID_REQUEST
    assert groups.heartbeat(epoch=0, topics=None).error is ErrorCode.INVALID_REQUEST
    assert groups.heartbeat(epoch=0, topics=()).error is ErrorCode.INVALID_REQUEST
    assert groups.heartbeat(topics=("t",), rack_id="").error is ErrorCode.INVALID_REQUEST
    assert groups.heartbeat(epoch=5).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.heartbeat(epoch=-1).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_has_a_largest_size() -> None:
    groups = ShareGroups()
    for member_id in "abc":
        groups.join(member_id)
    assert groups.heartbeat("d", topics=("t",)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.heartbeat("a", topics=("t",)).error is NONE


def test_new_partitions_of_a_known_topic_are_read_from_their_beginning() -> None:
    groups = ShareGroups()
    answer = groups.join()
    groups.set_topics(t=3, u=1)
    answer = groups.heartbeat(epoch=answer.member_epoch)
    assert answer.to_initialize == (SharePartitionToInitialize(T, 2, 0),)
    assert assigned(groups.heartbeat(epoch=answer.member_epoch)) == {T: (0, 1, 2)}


def test_an_initialization_that_failed_is_tried_again() -> None:
    groups = ShareGroups()
    groups.initializes = False
    joined = groups.heartbeat(topics=("t",))
    assert groups.heartbeat(epoch=joined.member_epoch).to_initialize == (), "it is under way"
    groups.report(joined.to_initialize, failed=True)
    assert groups.heartbeat(epoch=joined.member_epoch).to_initialize == joined.to_initialize


def test_an_initialization_without_a_report_is_retried() -> None:
    groups = ShareGroups()
    groups.initializes = False
    joined = groups.heartbeat(topics=("t",))
    groups.shell.advance(29_000)
    assert groups.heartbeat(epoch=joined.member_epoch).to_initialize == ()
    groups.shell.advance(2_000)
    assert groups.heartbeat(epoch=joined.member_epoch).to_initialize == joined.to_initialize
    groups.shell.restart()
    assert groups.heartbeat(epoch=joined.member_epoch).to_initialize == joined.to_initialize


def test_a_changed_subscription_changes_the_assignment() -> None:
    groups = ShareGroups()
    answer = groups.join()
    answer = groups.heartbeat(epoch=answer.member_epoch, topics=("u",))
    assert assigned(answer) == {}
    assert assigned(groups.heartbeat(epoch=answer.member_epoch)) == {U: (0,)}


def test_a_deleted_topic_leaves_the_assignment_and_the_group() -> None:
    groups = ShareGroups()
    answer = groups.join(topics=("t", "u"))
    groups.set_topics(u=1)
    assert assigned(groups.heartbeat(epoch=answer.member_epoch)) == {U: (0,)}
    assert set(groups.group.initialized) == {U}


def test_a_group_is_described_and_listed() -> None:
    groups = ShareGroups()
    groups.join(topics=("t", "u"))
    described = groups.described()
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    assert described.group_epoch == described.assignment_epoch
    (member,) = described.members
    assert (member.member_id, member.subscribed_topic_names) == ("m", ("t", "u"))
    assert [(topic.topic_name, topic.partitions) for topic in member.assignment] == [("t", (0, 1)), ("u", (0,))]
    listed = groups.query(ListGroupsRequest(types=("SHARE",))).groups
    assert listed == (ListedGroup("g", "share", "Stable", "share"),)
    assert groups.query(ListGroupsRequest(types=("consumer",))).groups == ()
    missing = groups.query(ShareGroupDescribeRequest(("x",))).groups[0]
    assert (missing.error, missing.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_other_protocols_can_not_use_the_group() -> None:
    groups = ShareGroups()
    groups.join()
    shell = groups.shell
    assert shell.join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shell.heartbeat("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.leave("m") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert shell.commit() is ErrorCode.GROUP_ID_NOT_FOUND
    request = ConsumerGroupHeartbeatRequest(
        "g", "c", 0, rebalance_timeout_ms=1000, subscribed_topic_names=("t",), topic_partitions=()
    )
    assert shell.execute(request).error is ErrorCode.GROUP_ID_NOT_FOUND
    request = ConsumerGroupHeartbeatRequest(
        "c", "c", 0, rebalance_timeout_ms=1000, subscribed_topic_names=("t",), topic_partitions=()
    )
    assert shell.execute(request).error is NONE
    assert shell.execute(ShareGroupHeartbeatRequest("c", "m", 0, subscribed_topic_names=("t",))).error is (
        ErrorCode.GROUP_ID_NOT_FOUND
    )


def test_start_offsets_of_a_group_without_members_can_be_altered() -> None:
    groups = ShareGroups()
    groups.join()
    request = AlterShareGroupOffsetsRequest(
        "g",
        (
            TopicStartOffsets("t", ((1, 7), (9, 0))),
            TopicStartOffsets("u", ((0, 3),)),
            TopicStartOffsets("x", ((0, 3),)),
        ),
    )
    assert groups.shell.execute(request).error is ErrorCode.NON_EMPTY_GROUP
    groups.heartbeat(epoch=-1)
    epoch = groups.described().group_epoch
    answer = groups.shell.execute(request)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [topic.errors for topic in answer.topics] == [(NONE, unknown), (NONE,), (unknown,)]
    assert answer.to_initialize == (SharePartitionToInitialize(T, 1, 7), SharePartitionToInitialize(U, 0, 3))
    assert answer.state_epoch == epoch + 1 == groups.described().group_epoch
    groups.report(answer.to_initialize)
    found = groups.query(ShareGroupPartitionsRequest("g")).topics
    assert {(topic.topic_name, topic.partitions) for topic in found} == {("t", (0, 1)), ("u", (0,))}


def test_a_member_that_joins_during_a_reset_does_not_send_the_group_back_to_the_beginning() -> None:
    groups = ShareGroups()
    groups.join()
    groups.heartbeat(epoch=-1)
    groups.shell.advance(60_000)
    reset = AlterShareGroupOffsetsRequest(
        "g", (TopicStartOffsets("t", ((0, 700),)), TopicStartOffsets("u", ((0, 300),)))
    )
    assert groups.shell.execute(reset).to_initialize
    joined = groups.heartbeat("n", topics=("t", "u"))
    assert joined.to_initialize == (), "the reset is under way"
    assert assigned(joined) == {T: (0, 1)}


def test_a_topic_is_not_initialized_while_its_state_is_being_deleted() -> None:
    groups = ShareGroups()
    groups.join()
    groups.heartbeat(epoch=-1)
    groups.shell.execute(DeleteShareGroupOffsetsRequest("g", ("t",)))
    joined = groups.heartbeat("n", topics=("t",))
    assert joined.to_initialize == (), "the deletion could come after it"
    groups.shell.execute(ShareGroupStateDeletedRequest("g", (T,)))
    answer = groups.heartbeat("n", joined.member_epoch)
    assert answer.to_initialize == (SharePartitionToInitialize(T, 0), SharePartitionToInitialize(T, 1))


def test_a_deletion_without_a_report_blocks_its_topic_only_for_a_while() -> None:
    groups = ShareGroups()
    groups.join()
    groups.heartbeat(epoch=-1)
    groups.shell.execute(DeleteShareGroupOffsetsRequest("g", ("t",)))
    joined = groups.heartbeat("n", topics=("t",))
    groups.shell.advance(31_000)
    assert groups.heartbeat("n", joined.member_epoch).to_initialize


@pytest.mark.parametrize("offset", [-2, -(2**63)])
def test_a_start_offset_that_is_none_is_refused(offset: int) -> None:
    groups = ShareGroups()
    groups.join()
    groups.heartbeat(epoch=-1)
    answer = groups.shell.execute(AlterShareGroupOffsetsRequest("g", (TopicStartOffsets("t", ((0, offset),)),)))
    assert [topic.errors for topic in answer.topics] == [(ErrorCode.INVALID_REQUEST,)]
    assert answer.to_initialize == ()


def test_a_group_can_be_deleted_when_its_state_is() -> None:
    groups = ShareGroups()
    groups.join(topics=("t", "u"))
    assert groups.shell.execute(DeleteShareGroupOffsetsRequest("g", None)).error is ErrorCode.NON_EMPTY_GROUP
    groups.heartbeat(epoch=-1)
    assert groups.shell.execute(DeleteGroupsRequest(("g",))).errors == (ErrorCode.NON_EMPTY_GROUP,)
    for _ in range(2):
        answer = groups.shell.execute(DeleteShareGroupOffsetsRequest("g", None))
        assert answer.to_delete == (TargetPartitions(T, (0, 1)), TargetPartitions(U, (0,))), "it can be repeated"
    assert groups.shell.execute(ShareGroupStateDeletedRequest("g", (T, U))).error is NONE
    assert groups.shell.execute(DeleteGroupsRequest(("g",))).errors == (NONE,)
    groups.shell.restart()
    assert groups.shell.core.state.groups == {}


@pytest.mark.parametrize("after_ms", [30_000, 5])
def test_a_recreated_group_fences_leaders_of_the_group_before_it(after_ms: int) -> None:
    groups = ShareGroups()
    before = groups.join()
    groups.heartbeat(epoch=-1)
    groups.shell.execute(DeleteShareGroupOffsetsRequest("g", None))
    groups.shell.execute(ShareGroupStateDeletedRequest("g", (T,)))
    epochs = range(before.state_epoch - 1, groups.group.epoch + 1)
    assert groups.shell.execute(DeleteGroupsRequest(("g",))).errors == (NONE,)
    groups.shell.advance(after_ms)
    again = groups.heartbeat(topics=("t",)).state_epoch
    assert again not in epochs
    assert 0 < again < 1 << 24, "librdkafka can't read others"


def test_offsets_are_deleted_by_name_although_the_topic_was_recreated_meanwhile() -> None:
    groups = ShareGroups()
    groups.join()
    again = uuid.UUID(int=0)
    groups.shell.topics = Topics([TopicMetadata(again, "t", 1)], groups.shell.topics.version + 1)
    groups.shell.restart()
    joined = groups.heartbeat("n", topics=("t",))
    assert joined.to_initialize == (SharePartitionToInitialize(again, 0),)
    for member_id in "mn":
        groups.heartbeat(member_id, -1)
    answer = groups.shell.execute(DeleteShareGroupOffsetsRequest("g", ("t",)))
    assert set(answer.to_delete) == {TargetPartitions(T, (0, 1)), TargetPartitions(again, (0,))}
    groups.shell.execute(ShareGroupStateDeletedRequest("g", (T, again)))
    assert groups.shell.execute(DeleteGroupsRequest(("g",))).errors == (NONE,)


def test_offsets_of_single_topics_can_be_deleted() -> None:
    groups = ShareGroups()
    groups.join(topics=("t", "u"))
    groups.heartbeat(epoch=-1)
    answer = groups.shell.execute(DeleteShareGroupOffsetsRequest("g", ("u", "x")))
    assert [(topic.topic_name, topic.error) for topic in answer.topics] == [
        ("u", NONE),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert answer.to_delete == (TargetPartitions(U, (0,)),)
    groups.shell.execute(ShareGroupStateDeletedRequest("g", (U,)))
    assert [topic.topic_name for topic in groups.query(ShareGroupPartitionsRequest("g")).topics] == ["t"]
    joined = groups.heartbeat("n", topics=("u",))
    assert joined.to_initialize == (SharePartitionToInitialize(U, 0),), "it begins anew"


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 8])
def test_every_partition_is_read_and_every_member_has_work(members: int, partitions: int) -> None:
    ids = [f"m{number:02}" for number in range(members)]
    topics = {T: frozenset(range(partitions))}
    targets = assign_simple(dict.fromkeys(ids, frozenset((T,))), {}, topics)
    sizes = [len(target[T]) for target in targets.values()]
    readers = [sum(number in target[T] for target in targets.values()) for number in range(partitions)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert min(readers) >= 1
    assert max(readers) <= -(-members // partitions)
    assert assign_simple(dict.fromkeys(ids, frozenset((T,))), targets, topics) == targets, "nothing moves without need"


def test_members_with_different_subscriptions_read_what_they_asked_for() -> None:
    topics = {T: frozenset((0, 1)), U: frozenset((0,))}
    targets = assign_simple({"a": frozenset((T,)), "b": frozenset((T, U)), "c": frozenset()}, {}, topics)
    assert sorted([*targets["a"][T], *targets["b"][T]]) == [0, 1]
    assert (targets["b"][U], targets["c"]) == (frozenset((0,)), {})
