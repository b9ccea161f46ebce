"""When the log cannot be written: nothing durable changes, and everybody who waits is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rayka.coordinator.groups.requests import DeleteGroupsRequest
from rayka.errors import ErrorCode
from tests.unit.coordinator.clients import ConsumerClient, topics
from tests.unit.coordinator.shell import SESSION_MS, Shell

E = ErrorCode
T = TypeVar("T")


def test_a_lost_assignment_fails_the_generation() -> None:
    shell = Shell()
    ids = [shell.known_member() for _ in range(2)]
    handles = [shell.join(member_id=member_id) for member_id in ids]
    shell.settle()
    joined = sorted((shell.answer(handle) for handle in handles), key=lambda j: j.member_id != j.leader)
    waiting = shell.sync(joined[1])
    before = shell.core.state.durable()
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert shell.sync(joined[0], {joined[0].member_id: b"all"}).error is E.COORDINATOR_NOT_AVAILABLE
    assert shell.answer(waiting).error is E.COORDINATOR_NOT_AVAILABLE
    assert (shell.core.state.durable(), shell.state()) == (before, "PreparingRebalance")
    handles = [shell.join(member_id=member_id) for member_id in ids]
    again = [shell.answer(handle) if isinstance(handle, int) else handle for handle in handles]
    shell.finish(again)
    assert shell.state() == "Stable"


def test_a_group_whose_creation_fails_does_not_exist() -> None:
    shell = Shell()
    shell.fail_next = E.KAFKA_STORAGE_ERROR
    assert shell.join().error is E.NOT_COORDINATOR
    assert shell.state() == ""
    shell.fail_next = E.KAFKA_STORAGE_ERROR
    assert shell.join(require_known_member_id=False).error is E.NOT_COORDINATOR
    assert (shell.state(), shell.core.next_deadline()) == ("", shell.now.ms + 600_000)


def test_an_empty_consumer_group_stays_one_if_its_conversion_fails() -> None:
    shell = Shell()
    shell.set_topics(topics("t"))
    consumer = ConsumerClient(shell, "c")
    consumer.join()
    consumer.leave()
    before = shell.core.state.durable()
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert shell.join().error is E.COORDINATOR_NOT_AVAILABLE
    assert shell.core.state.durable() == before


def test_a_member_has_left_even_if_that_could_not_be_written() -> None:
    shell = Shell()
    (member,) = shell.settled()
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert shell.leave(member.member_id) == [E.NONE]
    assert shell.state() == "Empty"


def test_waiting_requests_are_answered_even_if_the_end_of_the_group_could_not_be_written() -> None:
    shell = Shell()
    (member,) = shell.settled()
    pending = shell.known_member(session_timeout_ms=600_000)
    waiting = shell.join(member_id=member.member_id)
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert shell.leave(pending, member.member_id) == [E.NONE, E.NONE]
    assert shell.answer(waiting).error is E.UNKNOWN_MEMBER_ID


def test_removing_an_expired_consumer_is_tried_again() -> None:
    shell = Shell()
    shell.set_topics(topics("t"))
    ConsumerClient(shell, "c").join()
    shell.advance(44_999)
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    shell.advance(1)
    assert shell.state() == "Stable"
    shell.advance(500)
    assert shell.state() == "Empty"


def test_failed_deletions_are_reported() -> None:
    shell = Shell()
    shell.commit()
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert shell.run(shell.core.delete_groups(DeleteGroupsRequest(("g", "none")), shell.now)).errors == (
        E.COORDINATOR_NOT_AVAILABLE,
        E.GROUP_ID_NOT_FOUND,
    )
    assert shell.committed() == 7


def test_expired_offsets_wait_for_the_next_check() -> None:
    shell = Shell()
    shell.commit(retention_time_ms=SESSION_MS)
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    shell.advance(600_000)
    assert shell.committed() == 7
    shell.advance(600_000)
    assert shell.committed() == -1


def test_an_unexpected_error_anywhere_in_a_command_leaves_the_state_as_it_was() -> None:
    """In groups of both kinds each command fails first, at any of its calls."""
    for calls in range(1, 400, 3):
        shell = Shell()
        shell.set_topics(topics("t"))

        def interrupted(command: Callable[[], T], shell: Shell = shell, calls: int = calls) -> T:
            shell.interrupt_after = calls
            return command()

        request_id = interrupted(shell.static_join)
        shell.settle()
        (member,) = shell.finish([shell.answer(request_id)])
        assert interrupted(shell.static_join).skip_assignment, member
        assert interrupted(shell.commit) is E.UNKNOWN_MEMBER_ID
        a, b = (ConsumerClient(shell, name, group_id="h") for name in "ab")
        for command in (a.join, b.join, a.heartbeat, a.leave):
            interrupted(command)
        assert shell.describe("h").members[0].member_id == "b"
