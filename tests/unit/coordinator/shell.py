"""A shell around the core for tests: a log in memory, a clock that is set, and answers kept by request id."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    Protocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.coordinator.groups.consumer.requests import ConsumerGroupDescribeRequest
from rayka.coordinator.groups.coordinator import GroupCoordinator
from rayka.coordinator.groups.record_formats import decode, encode
from rayka.coordinator.groups.records import CoordinatorRecord
from rayka.coordinator.groups.requests import (
    CommittedOffset,
    DescribedModernGroup,
    ListedGroup,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetPartition,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.groups.spec import COMMANDS, QUERIES
from rayka.coordinator.request import Request
from rayka.coordinator.result import Completion, Pending, Result
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode
from tests.support.consumer_protocol import subscription_bytes

SESSION_MS = 10_000
REBALANCE_MS = 60_000


class Shell:
    """Appends, commits and delivers as the actor does. `fail_next` makes the next append fail."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0, initial_rebalance_quiet_ms=0)
        self.now = Now(1_000_000, 1_700_000_000_000)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[int, Any] = {}
        self.fail_next: ErrorCode | None = None
        self.validates = True
        self.interrupt_after: int | None = None
        self._ids = itertools.count(1)
        self.topics = Topics(version=0)
        self.core = self._load()

    def set_topics(self, topics: Topics) -> None:
        """The cluster's topics change."""
        self.topics = topics
        self.run(self.core.on_new_metadata_image(topics))

    def _load(self) -> GroupCoordinator:
        core = GroupCoordinator(self.settings)
        for offset, record in enumerate(self.records):
            core.replay(record, offset)
        core.on_new_metadata_image(self.topics)
        core.on_loaded(self.now)
        return core

    @property
    def records(self) -> list[CoordinatorRecord]:
        """The log, decoded."""
        decoded = [decode(key, value) for key, value in self.log]
        return [record for record in decoded if record is not None]

    def restart(self) -> None:
        """kill -9: what is not in the log is gone, and with it the requests that waited."""
        self.answers.clear()
        self.core = self._load()

    def execute(self, request: Request[Any]) -> Any:
        """Carries out a request. With `interrupt_after`, an attempt that fails half-way comes first."""
        if self.interrupt_after is not None:
            after, self.interrupt_after = self.interrupt_after, None
            self._interrupt(request, after)
        return self.run(COMMANDS[type(request)](self.core, request, self.now))

    def query(self, request: Request[Any]) -> Any:
        """The response to a query."""
        return QUERIES[type(request)](self.core, request)

    def _interrupt(self, request: Request[Any], after: int) -> None:
        """A command changes nothing before its commit, even if it ends with an error after some calls."""
        before = self._snapshot()
        with contextlib.suppress(Interrupted), raising_after(after):
            COMMANDS[type(request)](self.core, request, self.now)
        assert self._snapshot() == before
        self.core.validate_state()

    def _snapshot(self) -> Any:
        """The state of groups and offsets, durable or not, without deadlines."""
        groups = {
            group_id: {k: v.copy() if isinstance(v, dict | set) else v for k, v in vars(group).items()}
            for group_id, group in self.core.state.groups.items()
        }
        return groups, self.core.state.durable()["offsets"]

    def run(self, result: Result[Any]) -> Any:
        """Appends, commits, delivers. Returns the answer, or the id that it will come under."""
        if result.records and self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            result = self.core.rollback(result.step, error, self.now) or result
        else:
            for record in result.records:
                self.log.append(encode(record))
                self.core.replay(record, len(self.log) - 1)
            if completions := self._commit(result):
                result = dataclasses.replace(result, completions=(*result.completions, *completions))
        for request_id, response in result.completions:
            assert request_id not in self.answers, "a request is answered once"
            self.answers[request_id] = response
        if self.validates:
            self.core.validate_state()
        if isinstance(result.response, Pending):
            return self.answers.pop(result.response.request_id, result.response.request_id)
        return result.response

    def _commit(self, result: Result[Any]) -> tuple[Completion, ...]:
        return () if result.step is None else self.core.commit(result.step, self.now)

    def advance(self, ms: int) -> None:
        """Lets time pass; everything happens at its time."""
        end_ms = self.now.ms + ms
        while (due_ms := self.core.next_deadline()) is not None and due_ms <= end_ms:
            self._go_on(max(due_ms - self.now.ms, 0))
            self.settle()
        self._go_on(end_ms - self.now.ms)

    def _go_on(self, ms: int) -> None:
        self.now = Now(self.now.ms + ms, self.now.wall_ms + ms)

    def set_clock(self, ms: int) -> None:
        """The wall clock jumps, back if `ms` is negative; what is due then comes at once."""
        self.now = Now(self.now.ms, self.now.wall_ms + ms)
        self.settle()

    def settle(self) -> None:
        """Carries out what is due now."""
        while (result := self.core.expire(self.now)) is not None:
            self.run(result)

    def answer(self, request_id: int) -> Any:
        """The answer to a request that waited."""
        return self.answers.pop(request_id)

    def join(self, group_id: str = "g", member_id: str = "", **changes: Any) -> Any:
        """A join; changes are fields of the request. Returns the answer or a request id."""
        return self.execute(join_request(group_id, member_id, f"{next(self._ids)}", **changes))

    def static_join(self) -> Any:
        """A join of the static member `i`."""
        return self.join(group_instance_id="i")

    def sync(self, member: JoinGroupResponse, assignments: dict[str, bytes] | None = None, **changes: Any) -> Any:
        """A sync of a member that joined."""
        fields: dict[str, Any] = {"group_id": "g", "generation_id": member.generation_id, "member_id": member.member_id}
        request = SyncGroupRequest(**fields | {"assignments": tuple((assignments or {}).items())} | changes)
        return self.execute(request)

    def heartbeat(self, member_id: str, generation_id: int, group_id: str = "g", **changes: Any) -> ErrorCode:
        """A heartbeat's error."""
        request = HeartbeatRequest(group_id, generation_id, member_id, **changes)
        response: HeartbeatResponse = self.execute(request)
        return response.error

    def leave(self, *members: str | MemberIdentity, group_id: str = "g") -> list[ErrorCode]:
        """The errors of leaving members."""
        identities = tuple(m if isinstance(m, MemberIdentity) else MemberIdentity(m) for m in members)
        response: LeaveGroupResponse = self.execute(LeaveGroupRequest(group_id, identities))
        return [member.error for member in response.members] if response.error is ErrorCode.NONE else [response.error]

    def commit(self, offset: int = 7, group_id: str = "g", topic: str = "t", **changes: Any) -> ErrorCode:
        """The error of committing one offset."""
        names = CommittedOffset._fields
        committed = CommittedOffset(
            **{"topic": topic, "partition": 0, "offset": offset}
            | {name: changes.pop(name) for name in list(changes) if name in names}
        )
        request = OffsetCommitRequest(group_id, (committed,), **changes)
        response: OffsetCommitResponse = self.execute(request)
        return response.errors[0]

    def committed(self, group_id: str = "g", topic: str = "t", partition: int = 0) -> int:
        """The committed offset, -1 if there is none."""
        request = OffsetFetchRequest(group_id, (OffsetPartition(topic, partition),))
        response: OffsetFetchResponse = self.query(request)
        return response.offsets[0].offset

    def list_groups(self, *filters: tuple[str, ...]) -> tuple[ListedGroup, ...]:
        """The groups, of some states and of some types."""
        return self.core.list_groups(ListGroupsRequest(*filters)).groups

    def describe_classic(self, group_id: str = "g") -> DescribedGroup:
        """A group as DescribeGroups shows it."""
        return self.core.describe_groups(DescribeGroupsRequest((group_id,))).groups[0]

    def describe(self, group_id: str = "g") -> DescribedModernGroup:
        """A group as ConsumerGroupDescribe shows it."""
        return self.core.consumer_group_describe(ConsumerGroupDescribeRequest((group_id,))).groups[0]

    def state(self, group_id: str = "g") -> str:
        """The group's state as it is listed; "" if it is not there."""
        return next((g.group_state for g in self.list_groups() if g.group_id == group_id), "")

    def known_member(self, group_id: str = "g", **changes: Any) -> str:
        """A member id from a first join that was sent back."""
        response: JoinGroupResponse = self.join(group_id, **changes)
        assert response.error is ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id

    def settled(self, count: int = 1, group_id: str = "g", **changes: Any) -> list[JoinGroupResponse]:
        """A stable group of `count` members, the leader first; member i is assigned b"i"."""
        ids = [self.known_member(group_id, **changes) for _ in range(count)]
        handles = [self.join(group_id, member_id, **changes) for member_id in ids]
        self.settle()
        return self.finish([self.answer(handle) for handle in handles], group_id)

    def finish(self, members: list[JoinGroupResponse], group_id: str = "g") -> list[JoinGroupResponse]:
        """All members sync; the leader's answer comes first."""
        members = sorted(members, key=lambda member: member.member_id != member.leader)
        parts = {member.member_id: b"%d" % index for index, member in enumerate(members)}
        handles = [self.sync(member, group_id=group_id) for member in members[1:]]
        first: SyncGroupResponse = self.sync(members[0], parts, group_id=group_id)
        assert [first.assignment, *(self.answer(handle).assignment for handle in handles)] == list(parts.values())
        return members


class Interrupted(Exception):
    """An error that nobody expected."""


@contextlib.contextmanager
def raising_after(calls: int) -> Iterator[None]:
    """Raises Interrupted when the coordinator's own functions have been called so often."""
    remaining = calls

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal remaining
        remaining -= "/rayka/coordinator/" in frame.f_code.co_filename
        if not remaining:
            remaining = -1
            raise Interrupted

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def join_request(group_id: str, member_id: str, new_id: str, **changes: Any) -> JoinGroupRequest:
    """A consumer's join."""
    request = JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type="consumer",
        protocols=protocols("range"),
        new_id=new_id,
        client_id="client",
        client_host="/127.0.0.1",
    )
    return dataclasses.replace(request, **changes)


def protocols(*names: str, topics: tuple[str, ...] = ("t",)) -> tuple[Protocol, ...]:
    """Protocols that subscribe to topics."""
    return tuple(Protocol(name, subscription_bytes(topics)) for name in names)
