"""A consumer's side of its group's protocol (KIP-848): what to send to the coordinator, and how to follow its answers.

A state machine without I/O and without a clock. The shell sends the requests of `heartbeat`, and passes the outcome to
`answered` or `failed`. It carries out the actions of `next_action`, and reports each with `done`. Times are in ms, of
any clock that never goes back.

    UNSUBSCRIBED --subscribe--> JOINING --answer--> RECONCILING --done--> ACKNOWLEDGING --answer--> STABLE
                                                         ^------------- new target -------------------'

A fenced member loses its partitions and joins again. A member whose program does not poll is STALE: it has left, and
joins again with the next poll. If the coordinator refuses it permanently, the member is FATAL until the program gets
the error.

Only one action is in progress at a time, and it changes the assignment only when it is `done`. So partitions that the
program has are always taken from it before the member joins again.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from rayka.client.group.subscription import Identity, Subscription
from rayka.coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH, topic_partitions
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.records import TargetPartitions
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicIdPartition, TopicPartition

TopicName: TypeAlias = Callable[[uuid.UUID], str | None]
"""The name of a topic; None if it is not known here (yet)."""

_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)


class ActionKind(enum.Enum):
    """What to do with partitions: revoke them, assign them, or report them as lost."""

    REVOKE = enum.auto()
    ASSIGN = enum.auto()
    LOSE = enum.auto()


class Action(NamedTuple):
    """The next thing for the shell to do, with its partitions in order."""

    kind: ActionKind
    partitions: tuple[TopicIdPartition, ...]


class MembershipState(enum.Enum):
    """The member's state, with the names of Kafka's own client."""

    UNSUBSCRIBED = enum.auto()
    JOINING = enum.auto()
    RECONCILING = enum.auto()
    ACKNOWLEDGING = enum.auto()
    STABLE = enum.auto()
    FENCED = enum.auto()
    STALE = enum.auto()
    FATAL = enum.auto()
    LEAVING = enum.auto()


_IN_GROUP = (MembershipState.RECONCILING, MembershipState.ACKNOWLEDGING, MembershipState.STABLE)
_OUT_OF_GROUP = (MembershipState.FENCED, MembershipState.STALE, MembershipState.FATAL)


class Membership:
    """One member. `max_poll_interval_ms` None: the program need not poll to stay in the group."""

    def __init__(self, identity: Identity, max_poll_interval_ms: float | None, retry_backoff_ms: float) -> None:
        self.identity = identity
        self.state = MembershipState.UNSUBSCRIBED
        self.member_epoch = JOIN_EPOCH
        self.subscription = Subscription()
        self.assigned: frozenset[TopicIdPartition] = frozenset()
        self._target: frozenset[tuple[uuid.UUID, int]] = frozenset()
        self._under_way: Action | None = None
        self._error: RaykaError | None = None
        self._in_flight: ConsumerGroupHeartbeatRequest | None = None
        self._heartbeat_at_ms = 0.0
        self._poll_until_ms: float | None = None
        self._max_poll_interval_ms = max_poll_interval_ms
        self._retry_backoff_ms = retry_backoff_ms
        # What the next heartbeat has to send: all fields, the assigned partitions, that the member leaves.
        self._sent = Subscription()
        self._sends_all = True
        self._sends_assigned = False
        self._sends_departure = False
        self._may_be_known = False

    def subscribe(self, subscription: Subscription) -> None:
        """Join with this subscription, or replace the earlier one by it."""
        self.subscription = subscription
        if self.state is MembershipState.UNSUBSCRIBED:
            self._join()
        self.hurry()

    def leave(self) -> None:
        """Revoke all partitions and leave: UNSUBSCRIBED once the coordinator has been informed."""
        self.subscription = Subscription()
        self._error = None
        if self.state is not MembershipState.UNSUBSCRIBED:
            self.state = MembershipState.LEAVING
            self._depart_if_free()

    def polling(self) -> bool:
        """The program is in a poll: the poll interval does not run. True if the member joins again now."""
        self._poll_until_ms = None
        if (
            self.state not in (MembershipState.STALE, MembershipState.FATAL)
            or self._is_burdened
            or self._error is not None
        ):
            return False
        self._join()
        return True

    def polled(self, now_ms: float) -> None:
        """The program has returned from a poll: the poll interval starts."""
        if self._max_poll_interval_ms is not None:
            self._poll_until_ms = now_ms + self._max_poll_interval_ms

    def expire(self, now_ms: float) -> bool:
        """Whether the program took too long between two polls, so that the member now leaves the group."""
        if not self._wants_polls or self._poll_until_ms is None or now_ms < self._poll_until_ms:
            return False
        self.state = MembershipState.STALE
        self._depart()
        return True

    def next_deadline(self) -> float | None:
        """When to call `heartbeat` or `expire` next; None: not before another event."""
        times = [self._poll_until_ms] if self._wants_polls else []
        if self._in_flight is None and self._may_speak:
            times.append(self._heartbeat_at_ms)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def heartbeat(self, now_ms: float) -> ConsumerGroupHeartbeatRequest | None:
        """The request that is due now, or None. Its outcome goes to `answered` or `failed`."""
        if self._in_flight is not None or not self._may_speak or now_ms < self._heartbeat_at_ms:
            return None
        self._in_flight = self._departure() if self._sends_departure else self._report()
        return self._in_flight

    def answered(self, answer: ConsumerGroupHeartbeatResponse, now_ms: float) -> None:
        """The coordinator's answer to the heartbeat."""
        if answer.error is not ErrorCode.NONE:
            self.failed(RaykaError(answer.error, answer.error_message or ""), now_ms)
            return
        sent = self._landed()
        if sent.member_epoch < JOIN_EPOCH:
            self._left()
        elif self._is_current(sent):
            self._accept(answer, now_ms)

    def failed(self, error: RaykaError, now_ms: float) -> None:
        """The heartbeat was refused, or got no answer. Without an answer it may have arrived nevertheless."""
        sent = self._landed()
        self._sends_all = True
        if error.code.retriable:
            self._heartbeat_at_ms = now_ms + self._retry_backoff_ms
        elif sent.member_epoch < JOIN_EPOCH:
            self._left()
        elif self._is_current(sent):
            self._refused(error, now_ms)

    def hurry(self) -> None:
        """Something has changed: send the next heartbeat at once."""
        self._heartbeat_at_ms = 0

    def fail(self, error: RaykaError) -> None:
        """The member can't continue: the next poll raises the error."""
        if self.state is MembershipState.LEAVING:
            return
        was_in_group = self.state in _IN_GROUP
        self._error = error
        self.state = MembershipState.FATAL
        if was_in_group:
            self._depart()

    def take_error(self) -> RaykaError | None:
        """The error for the program, once all partitions are lost. The next poll after that joins again."""
        if self._is_burdened:
            return None
        error, self._error = self._error, None
        return error

    @property
    def may_wait_for_topics(self) -> bool:
        """Whether the target may have topics whose names are not yet known here."""
        return self.state is MembershipState.RECONCILING and self._under_way is None

    def next_action(self, name_of: TopicName) -> Action | None:
        """The next action, once the last one is `done` or `abandoned`."""
        if self._under_way is None:
            self._under_way = self._choose(name_of)
            return self._under_way
        return None

    def done(self, action: Action) -> None:
        """The action is carried out, its callback included."""
        if action.kind is ActionKind.ASSIGN:
            self.assigned |= frozenset(action.partitions)
        else:
            self.assigned -= frozenset(action.partitions)
        self._ended()

    def abandoned(self) -> None:
        """The action could not be carried out, and changed nothing."""
        self._ended()

    @property
    def is_under_way(self) -> bool:
        """Whether an action was returned that is not `done` yet."""
        return self._under_way is not None

    def validate_state(self) -> None:
        """Raise AssertionError if the parts of the state contradict each other."""
        state, action = self.state, self._under_way
        has_epoch = self.member_epoch > JOIN_EPOCH
        assert has_epoch or state not in _IN_GROUP, f"{state.name} without an epoch"
        assert not has_epoch or state in (*_IN_GROUP, MembershipState.LEAVING), (
            f"{state.name} in epoch {self.member_epoch}"
        )
        if state in (MembershipState.UNSUBSCRIBED, MembershipState.JOINING):
            assert not self._is_burdened, f"{state.name} with partitions"
        if state in (MembershipState.ACKNOWLEDGING, MembershipState.STABLE):
            assert action is None, f"{state.name} with {action}"
            assert self._has_target, f"{state.name} with {self.assigned} in place of {self._target}"
        assert self._is_burdened or state is not MembershipState.FENCED, "FENCED without partitions"
        assert self._error is None or state is MembershipState.FATAL, f"{state.name} with {self._error}"
        if action is not None:
            assert action.partitions, "an action without partitions"
            is_new = self.assigned.isdisjoint(action.partitions)
            assert is_new if action.kind is ActionKind.ASSIGN else self.assigned.issuperset(action.partitions), action

    @property
    def _has_target(self) -> bool:
        return {(one.topic_id, one.topic_partition.partition) for one in self.assigned} == self._target

    @property
    def _wants_polls(self) -> bool:
        return self.state is MembershipState.JOINING or self.state in _IN_GROUP

    @property
    def _is_burdened(self) -> bool:
        return bool(self.assigned) or self._under_way is not None

    @property
    def _may_speak(self) -> bool:
        return self._sends_departure or self._wants_polls

    @property
    def _has_news(self) -> bool:
        return self._sends_departure or self._sends_assigned or self._sent != self.subscription

    def _is_current(self, sent: ConsumerGroupHeartbeatRequest) -> bool:
        """Whether the request was sent since the member joined last."""
        if self._sends_departure:
            return False
        return self.state in _IN_GROUP or (self.state is MembershipState.JOINING and sent.member_epoch == JOIN_EPOCH)

    def _join(self) -> None:
        self.state = MembershipState.JOINING
        self.member_epoch = JOIN_EPOCH
        self._sends_all = True
        self.hurry()

    def _landed(self) -> ConsumerGroupHeartbeatRequest:
        sent, self._in_flight = self._in_flight, None
        assert sent is not None
        return sent

    def _report(self) -> ConsumerGroupHeartbeatRequest:
        """A heartbeat with every field that the coordinator may not know."""
        identity, sends_all, joins = self.identity, self._sends_all, self.state is MembershipState.JOINING
        names = sends_all or self._sent != self.subscription
        assigned = () if joins else _grouped(self.assigned) if sends_all or self._sends_assigned else None
        self._sent, self._sends_all, self._sends_assigned, self._may_be_known = self.subscription, False, False, True
        return self._request(
            JOIN_EPOCH if joins else self.member_epoch,
            rack_id=identity.rack_id if sends_all else None,
            rebalance_timeout_ms=identity.rebalance_timeout_ms if sends_all else -1,
            subscribed_topic_names=self.subscription.topics if names else None,
            subscribed_topic_regex=self.subscription.pattern or "" if names else None,
            server_assignor=identity.server_assignor if sends_all else None,
            topic_partitions=assigned,
        )

    def _departure(self) -> ConsumerGroupHeartbeatRequest:
        """A static member keeps its partitions until its session ends."""
        return self._request(LEAVE_EPOCH if self.identity.instance_id is None else LEAVE_STATIC_EPOCH)

    def _request(self, member_epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        group_id, member_id, instance_id, _, client_id, client_host, *_ = self.identity
        return ConsumerGroupHeartbeatRequest(
            group_id, member_id, member_epoch, instance_id, client_id=client_id, client_host=client_host, **fields
        )

    def _accept(self, answer: ConsumerGroupHeartbeatResponse, now_ms: float) -> None:
        self.member_epoch = answer.member_epoch
        self._heartbeat_at_ms = now_ms + answer.heartbeat_interval_ms
        if answer.assignment is not None:
            self._target = frozenset(
                (target.topic_id, number) for target in answer.assignment for number in target.partitions
            )
            self.state = MembershipState.RECONCILING
            self._acknowledge_if_reconciled()
        elif self.state is MembershipState.ACKNOWLEDGING and not self._sends_assigned:
            self.state = MembershipState.STABLE
        if self._has_news:
            self.hurry()

    def _refused(self, error: RaykaError, now_ms: float) -> None:
        # A join creates a group that does not exist: it gets GROUP_ID_NOT_FOUND only from a share group.
        is_other_kind = self.state is MembershipState.JOINING and error.code is ErrorCode.GROUP_ID_NOT_FOUND
        if error.code not in _FENCED or is_other_kind:
            self.fail(error)
            return
        self._may_be_known = False
        self.member_epoch = JOIN_EPOCH
        if self._is_burdened:
            self.state = MembershipState.FENCED
        else:
            self._join()
            self._heartbeat_at_ms = now_ms + self._retry_backoff_ms

    def _depart(self) -> None:
        self.member_epoch = JOIN_EPOCH
        self._sends_departure = self._may_be_known
        self.hurry()

    def _depart_if_free(self) -> None:
        if self._is_burdened:
            return
        if self._may_be_known:
            self._depart()
        else:
            self._left()

    def _left(self) -> None:
        self._sends_departure = self._may_be_known = False
        self.member_epoch = JOIN_EPOCH
        if self.state is MembershipState.LEAVING:
            self.state = MembershipState.UNSUBSCRIBED
            if self.subscription:
                self._join()
        self._sends_all = True
        self.hurry()

    def _choose(self, name_of: TopicName) -> Action | None:
        if self.state in _OUT_OF_GROUP or self.state is MembershipState.LEAVING:
            in_order = self.state is MembershipState.LEAVING and self.member_epoch > JOIN_EPOCH
            return _action(ActionKind.REVOKE if in_order else ActionKind.LOSE, self.assigned)
        if self.state is not MembershipState.RECONCILING:
            return None
        surplus = [one for one in self.assigned if (one.topic_id, one.topic_partition.partition) not in self._target]
        return _action(ActionKind.REVOKE, surplus) or _action(ActionKind.ASSIGN, self._missing(name_of))

    def _missing(self, name_of: TopicName) -> Iterator[TopicIdPartition]:
        names = {topic_id: name_of(topic_id) for topic_id, _ in self._target}
        for topic_id, number in self._target:
            name = names[topic_id]
            if (
                name is not None
                and (one := TopicIdPartition(topic_id, TopicPartition(name, number))) not in self.assigned
            ):
                yield one

    def _ended(self) -> None:
        self._under_way = None
        if self.state is MembershipState.RECONCILING:
            self._sends_assigned = True
            self._acknowledge_if_reconciled()
            self.hurry()
        elif self.state is MembershipState.LEAVING:
            self._depart_if_free()
        elif self.state is MembershipState.FENCED and not self.assigned:
            self._join()

    def _acknowledge_if_reconciled(self) -> None:
        if self._under_way is None and self._has_target:
            self.state = MembershipState.ACKNOWLEDGING
            self._sends_assigned = True


def _action(kind: ActionKind, partitions: Iterable[TopicIdPartition]) -> Action | None:
    """None if there is nothing to do."""
    ordered = tuple(sorted(partitions, key=lambda one: one.topic_partition))
    return Action(kind, ordered) if ordered else None


def _grouped(partitions: Iterable[TopicIdPartition]) -> tuple[TargetPartitions, ...]:
    numbers: dict[uuid.UUID, list[int]] = {}
    for one in partitions:
        numbers.setdefault(one.topic_id, []).append(one.topic_partition.partition)
    return topic_partitions(numbers)
