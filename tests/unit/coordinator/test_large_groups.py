"""What a request of one member costs does not depend on how many members its group has."""

from __future__ import annotations

import sys
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

from rayka.coordinator.groups.consumer.assignors import AssignorMember, assign_uniform
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest
from rayka.coordinator.groups.settings import GroupSettings
from rayka.errors import ErrorCode
from tests.unit.coordinator.clients import ClassicClient, ConsumerClient, topics
from tests.unit.coordinator.shell import Shell


def unsettled(count: int) -> tuple[Shell, list[ConsumerClient]]:
    """A group of `count` members with a target that nobody has reached, since one more has joined."""
    shell = Shell(GroupSettings())
    shell.set_topics(topics("t", partitions=count + 1))
    clients = [ConsumerClient(shell, f"m{number}") for number in range(count + 1)]
    shell.validates = False
    for client in clients[:-1]:
        client.join()
    shell.advance(1_000)
    clients[0].heartbeat()
    shell.advance(1_000)
    clients[-1].join()
    return shell, clients


def heartbeat(shell: Shell, client: ConsumerClient) -> None:
    request = ConsumerGroupHeartbeatRequest(
        "g", client.member_id, client.epoch, client_id="client", client_host="/127.0.0.1"
    )
    response = shell.run(shell.core.consumer_group_heartbeat(request, shell.now))
    assert response.error is ErrorCode.NONE


def calls_of(action: Callable[[], None]) -> int:
    """How many functions the action calls."""
    count = 0

    def count_call(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def peak_bytes_of(action: Callable[[], None]) -> int:
    """How much memory the action needs at most."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_heartbeat_of_an_unsettled_group_touches_a_bounded_part_of_it() -> None:
    costs = []
    for size in (50, 2_000):
        shell, clients = unsettled(size)
        assert shell.state() in ("Assigning", "Reconciling")
        calls = calls_of(lambda: heartbeat(shell, clients[size // 2]))  # noqa: B023
        memory = peak_bytes_of(lambda: heartbeat(shell, clients[size // 2 + 1]))  # noqa: B023
        costs.append((calls, memory))
    (small_calls, _), (large_calls, large_bytes) = costs
    assert large_calls < 1.5 * small_calls
    assert large_bytes < 30_000


def test_a_member_that_leaves_a_large_group_costs_no_copy_of_it() -> None:
    _, clients = unsettled(2_000)
    assert peak_bytes_of(clients[7].leave) < 60_000


def joining(count: int) -> tuple[Shell, list[str]]:
    """A classic group whose `count` members wait for the end of its first join phase, and two that come too."""
    shell = Shell()
    shell.validates = False
    members = [shell.known_member() for _ in range(count + 2)]
    for member_id in members[:-2]:
        shell.join("g", member_id)
    return shell, members[-2:]


def test_a_member_that_joins_a_large_classic_group_costs_no_copy_of_it() -> None:
    calls = []
    for size in (50, 2_000):
        shell, (one, other) = joining(size)
        calls.append(calls_of(lambda: shell.join("g", one)))  # noqa: B023
        memory = peak_bytes_of(lambda: shell.join("g", other))  # noqa: B023
    assert calls[1] < 1.5 * calls[0]
    assert memory < 30_000


def test_a_member_that_syncs_with_a_large_classic_group_costs_no_copy_of_it() -> None:
    shell = Shell()
    shell.validates = False
    handles = [shell.join("g", shell.known_member()) for _ in range(2_000)]
    shell.settle()
    members = [shell.answer(handle) for handle in handles]
    followers = [member for member in members if member.member_id != member.leader]
    assert peak_bytes_of(lambda: shell.sync(followers[1_000])) < 30_000


def test_a_classic_member_that_joins_a_large_consumer_group_touches_a_bounded_part_of_it() -> None:
    calls, memory = [], 0
    for size in (50, 1_000):
        shell = Shell(GroupSettings())
        shell.set_topics(topics("t", partitions=size + 3))
        shell.validates = False
        ConsumerClient(shell, "consumer").join()
        members = [ClassicClient(shell) for _ in range(size + 2)]
        for member in (*members, *members[:-2]):
            member.step()
        calls.append(calls_of(members[-2].step))
        memory = peak_bytes_of(members[-1].step)
    assert calls[1] < 1.5 * calls[0]
    assert memory < 30_000


def test_one_member_with_more_topics_does_not_make_assigning_to_a_large_group_slow() -> None:
    calls = []
    for size in (100, 1_000):
        shared, extra = uuid.UUID(int=1), uuid.UUID(int=2)
        members = {f"m{number}": AssignorMember(None, frozenset({shared}), {}) for number in range(size)}
        members["more"] = AssignorMember(None, frozenset({shared, extra}), {})
        calls.append(calls_of(lambda: assign_uniform(members, {shared: size, extra: 1})))  # noqa: B023
    assert calls[1] < 15 * calls[0]
