"""The membership core: what it tells the coordinator and what it has done with partitions."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from rayka.client.group.membership import Action, ActionKind, Membership, MembershipState
from rayka.client.group.subscription import Identity, Subscription
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.records import TargetPartitions
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicIdPartition, TopicPartition

TOPIC = uuid.UUID(int=1)
NAMES = {TOPIC: "events"}
INTERVAL_MS = 1000
BACKOFF_MS = 10
POLL_MS = 5000
LOST = RaykaError(ErrorCode.NETWORK_EXCEPTION)


def member(instance_id: str | None = None) -> Membership:
    """One that has subscribed."""
    identity = Identity("g", "m", instance_id, "rack", "client", "host", "range", 7000)
    membership = Membership(identity, POLL_MS, BACKOFF_MS)
    membership.subscribe(Subscription(("events",)))
    return membership


def held(*numbers: int) -> frozenset[TopicIdPartition]:
    """Partitions of the topic."""
    return frozenset(TopicIdPartition(TOPIC, TopicPartition("events", number)) for number in numbers)


def answer(epoch: int, *numbers: int) -> ConsumerGroupHeartbeatResponse:
    """The coordinator assigns these."""
    return ConsumerGroupHeartbeatResponse(
        member_id="m",
        member_epoch=epoch,
        heartbeat_interval_ms=INTERVAL_MS,
        assignment=(TargetPartitions(TOPIC, numbers),) if numbers else (),
    )


def unchanged(epoch: int) -> ConsumerGroupHeartbeatResponse:
    """The coordinator has nothing new."""
    return replace(answer(epoch), assignment=None)


def refusal(error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    """The coordinator does not want the member."""
    return ConsumerGroupHeartbeatResponse(error, "because")


def send(membership: Membership, now_ms: float = 0) -> ConsumerGroupHeartbeatRequest:
    """The heartbeat that must be due."""
    request = membership.heartbeat(now_ms)
    assert request is not None
    return request


def act(membership: Membership) -> Action | None:
    """The next action, carried out."""
    action = membership.next_action(NAMES.get)
    if action is not None:
        membership.done(action)
    return action


def settled(*numbers: int, **options: Any) -> Membership:
    """A member that holds these and has said so."""
    membership = member(**options)
    send(membership)
    membership.answered(answer(1, *numbers), 0)
    act(membership)
    send(membership)
    membership.answered(unchanged(1), 0)
    assert membership.state is MembershipState.STABLE
    return membership


def test_a_join_sends_all_fields_and_an_acknowledgement_the_owned_partitions() -> None:
    membership = member()
    request = send(membership)
    assert request == ConsumerGroupHeartbeatRequest(
        "g", "m", 0, None, "rack", 7000, ("events",), "", "range", (), "client", "host"
    )
    assert membership.heartbeat(0) is None, "one heartbeat is on its way"
    membership.answered(answer(3, 0, 1), 0)
    assert membership.state is MembershipState.RECONCILING
    assert act(membership) == Action(ActionKind.ASSIGN, tuple(sorted(held(0, 1))))
    assert membership.state is MembershipState.ACKNOWLEDGING
    request = send(membership)
    assert (request.member_epoch, request.topic_partitions) == (3, (TargetPartitions(TOPIC, (0, 1)),))
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms) == (None, -1)
    membership.answered(unchanged(3), 0)
    assert membership.state is MembershipState.STABLE
    assert membership.heartbeat(INTERVAL_MS - 1) is None
    assert membership.next_deadline() == INTERVAL_MS
    request = send(membership, INTERVAL_MS)
    assert (request.topic_partitions, request.subscribed_topic_names, request.rack_id) == (None, None, None)


def test_partitions_are_revoked_and_acknowledged_before_new_ones_are_assigned() -> None:
    membership = settled(0, 1)
    send(membership, INTERVAL_MS)
    membership.answered(answer(1, 1, 2), INTERVAL_MS)
    revoke = membership.next_action(NAMES.get)
    assert revoke == Action(ActionKind.REVOKE, tuple(held(0)))
    assert membership.next_action(NAMES.get) is None
    assert membership.assigned == held(0, 1), "held until it is done"
    assert membership.heartbeat(INTERVAL_MS) is None
    membership.done(revoke)
    assert send(membership, INTERVAL_MS).topic_partitions == (TargetPartitions(TOPIC, (1,)),)
    assert act(membership) == Action(ActionKind.ASSIGN, tuple(held(2)))
    membership.answered(unchanged(1), INTERVAL_MS)
    assert membership.state is MembershipState.ACKNOWLEDGING
    assert send(membership, INTERVAL_MS).topic_partitions == (TargetPartitions(TOPIC, (1, 2)),)


def test_heartbeats_continue_during_a_slow_callback() -> None:
    membership = settled(0)
    send(membership, INTERVAL_MS)
    membership.answered(answer(1), INTERVAL_MS)
    membership.next_action(NAMES.get)
    request = send(membership, 2 * INTERVAL_MS)
    assert request.topic_partitions is None


def test_an_assigned_topic_that_the_client_does_not_know_yet_is_waited_for() -> None:
    membership = member()
    send(membership)
    membership.answered(answer(1, 0), 0)
    assert membership.next_action({}.get) is None
    assert membership.may_wait_for_topics
    assert act(membership) == Action(ActionKind.ASSIGN, tuple(held(0)))
    assert not membership.may_wait_for_topics


def test_all_fields_are_sent_again_after_a_heartbeat_that_may_be_lost() -> None:
    membership = settled(0)
    send(membership, INTERVAL_MS)
    membership.failed(LOST, INTERVAL_MS)
    assert membership.next_deadline() == INTERVAL_MS + BACKOFF_MS
    request = send(membership, INTERVAL_MS + BACKOFF_MS)
    assert request.member_epoch == 1
    assert request.subscribed_topic_names == ("events",)
    assert request.rebalance_timeout_ms == 7000
    assert request.topic_partitions == (TargetPartitions(TOPIC, (0,)),)
    membership.answered(answer(2, 0), INTERVAL_MS)
    assert membership.state is MembershipState.ACKNOWLEDGING
    assert membership.next_action(NAMES.get) is None


@pytest.mark.parametrize(
    "error", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_fenced_member_loses_its_partitions_and_joins_again(error: ErrorCode) -> None:
    membership = settled(0, 1)
    send(membership, INTERVAL_MS)
    membership.answered(refusal(error), INTERVAL_MS)
    assert membership.heartbeat(INTERVAL_MS) is None
    assert act(membership) == Action(ActionKind.LOSE, tuple(sorted(held(0, 1))))
    request = send(membership, INTERVAL_MS)
    assert (request.member_epoch, request.topic_partitions) == (0, ())
    assert membership.take_error() is None


def test_partitions_assigned_while_the_member_was_fenced_are_lost_too() -> None:
    membership = member()
    send(membership)
    membership.answered(answer(1, 0), 0)
    assign = membership.next_action(NAMES.get)
    send(membership, INTERVAL_MS)
    membership.answered(refusal(ErrorCode.FENCED_MEMBER_EPOCH), INTERVAL_MS)
    assert membership.heartbeat(INTERVAL_MS) is None
    assert assign is not None
    membership.done(assign)
    assert act(membership) == Action(ActionKind.LOSE, tuple(held(0)))
    assert membership.state is MembershipState.JOINING


def test_a_fatal_error_is_raised_once_and_the_next_poll_joins_again() -> None:
    membership = member()
    send(membership)
    membership.answered(refusal(ErrorCode.UNSUPPORTED_ASSIGNOR), 0)
    assert not membership.polling()
    error = membership.take_error()
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.UNSUPPORTED_ASSIGNOR, "because")
    assert membership.take_error() is None
    assert membership.heartbeat(10**6) is None
    assert membership.polling()
    assert send(membership).member_epoch == 0


def test_a_join_is_refused_for_good_where_the_group_is_of_another_kind() -> None:
    membership = member()
    send(membership)
    membership.answered(refusal(ErrorCode.GROUP_ID_NOT_FOUND), 0)
    error = membership.take_error()
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.GROUP_ID_NOT_FOUND, "because")
    assert membership.heartbeat(10**6) is None


def test_an_action_that_fails_ends_the_membership() -> None:
    membership = member()
    send(membership)
    membership.answered(answer(1, 0), 0)
    membership.next_action(NAMES.get)
    membership.fail(RaykaError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    assert membership.take_error() is None, "not while the action is under way"
    membership.abandoned()
    assert membership.take_error() is not None
    assert send(membership).member_epoch == -1
    membership.answered(unchanged(-1), 0)
    assert membership.polling()
    assert send(membership).member_epoch == 0


def test_a_member_whose_program_does_not_poll_leaves_until_the_next_poll() -> None:
    membership = settled(0)
    membership.polled(0)
    assert not membership.expire(POLL_MS - 1)
    assert membership.next_deadline() == INTERVAL_MS
    membership.polling()
    assert not membership.expire(10 * POLL_MS), "in a poll it has all the time"
    membership.polled(0)
    assert membership.expire(POLL_MS)
    assert send(membership, POLL_MS).member_epoch == -1
    membership.answered(unchanged(-1), POLL_MS)
    assert membership.heartbeat(10**6) is None
    assert not membership.polling()
    assert act(membership) == Action(ActionKind.LOSE, tuple(held(0)))
    assert membership.polling()
    assert send(membership, POLL_MS).member_epoch == 0


def test_it_leaves_before_it_joins_again() -> None:
    """Else the coordinator would take the new member for the old one."""
    membership = settled(0)
    membership.polled(0)
    in_flight = send(membership, INTERVAL_MS)
    assert membership.expire(POLL_MS)
    act(membership)
    assert membership.polling()
    assert in_flight.member_epoch == 1
    membership.answered(answer(1, 0, 1), POLL_MS)
    assert membership.state is MembershipState.JOINING, "that answer was for the life before"
    assert send(membership, POLL_MS).member_epoch == -1
    membership.answered(unchanged(-1), POLL_MS)
    assert send(membership, POLL_MS).member_epoch == 0


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("one", -2)])
def test_partitions_are_revoked_before_the_member_leaves(instance_id: str | None, epoch: int) -> None:
    membership = settled(0, instance_id=instance_id)
    membership.leave()
    assert membership.heartbeat(INTERVAL_MS) is None
    assert act(membership) == Action(ActionKind.REVOKE, tuple(held(0)))
    assert send(membership, INTERVAL_MS).member_epoch == epoch
    membership.failed(LOST, INTERVAL_MS)
    assert send(membership, INTERVAL_MS + BACKOFF_MS).member_epoch == epoch
    membership.answered(refusal(ErrorCode.UNKNOWN_MEMBER_ID), INTERVAL_MS)
    assert membership.state is MembershipState.UNSUBSCRIBED
    assert membership.next_deadline() is None


def test_a_member_that_never_joined_leaves_without_a_request() -> None:
    membership = member()
    membership.leave()
    assert membership.state is MembershipState.UNSUBSCRIBED


def test_leaving_while_the_join_is_in_flight() -> None:
    membership = member()
    send(membership)
    membership.leave()
    assert membership.heartbeat(0) is None
    membership.answered(answer(1, 0), 0)
    assert membership.next_action(NAMES.get) is None
    assert send(membership).member_epoch == -1
    membership.answered(unchanged(-1), 0)
    assert membership.state is MembershipState.UNSUBSCRIBED


def test_a_new_subscription_is_sent_at_once_and_a_pattern_replaces_names() -> None:
    membership = settled(0)
    membership.subscribe(Subscription(pattern="ev.*"))
    request = send(membership)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ((), "ev.*")
    membership.subscribe(Subscription(("other",)))
    membership.answered(unchanged(2), 0)
    request = send(membership)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (("other",), "")


def test_a_topic_created_again_under_its_name_is_another_topic() -> None:
    membership = settled(0)
    again = uuid.UUID(int=2)
    send(membership, INTERVAL_MS)
    membership.answered(replace(answer(2), assignment=(TargetPartitions(again, (0,)),)), INTERVAL_MS)
    assert act(membership) == Action(ActionKind.REVOKE, tuple(held(0)))
    action = membership.next_action({again: "events"}.get)
    assert action == Action(ActionKind.ASSIGN, (TopicIdPartition(again, TopicPartition("events", 0)),))
