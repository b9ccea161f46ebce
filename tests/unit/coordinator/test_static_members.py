"""Static members of classic groups (KIP-345, KIP-814)."""

from __future__ import annotations

import pytest

from rayka.coordinator.groups.classic.requests import JoinGroupResponse, MemberIdentity
from rayka.errors import ErrorCode
from tests.unit.coordinator.shell import REBALANCE_MS, Shell, protocols

E = ErrorCode


def settled(shell: Shell, *instances: str) -> dict[str, JoinGroupResponse]:
    handles = {instance: shell.join(group_instance_id=instance) for instance in instances}
    shell.settle()
    members = {instance: shell.answer(handle) for instance, handle in handles.items()}
    shell.finish(list(members.values()))
    return members


def test_a_static_member_joins_with_one_request() -> None:
    shell = Shell()
    members = settled(shell, "a")
    assert members["a"].member_id.startswith("a-")
    assert members["a"].members[0].group_instance_id == "a"


@pytest.mark.parametrize("supports_skipping", [True, False])
@pytest.mark.parametrize("instance", ["a", "b"])
def test_a_restarted_instance_continues_without_a_rebalance(instance: str, supports_skipping: bool) -> None:
    shell = Shell()
    before = settled(shell, "a", "b")
    old_leader = before["a"].leader
    is_leader = before[instance].member_id == old_leader
    again = shell.join(group_instance_id=instance, supports_skipping_assignment=supports_skipping)
    assert (again.error, again.generation_id, shell.state()) == (E.NONE, 1, "Stable")
    assert again.member_id != before[instance].member_id
    if supports_skipping:
        assert again.skip_assignment is is_leader
        assert again.leader == (again.member_id if is_leader else old_leader)
        assert bool(again.members) is is_leader
    else:
        assert (again.leader, again.skip_assignment, again.members) == (old_leader, False, ())
    assert shell.heartbeat(before[instance].member_id, 1, group_instance_id=instance) is E.FENCED_INSTANCE_ID
    assert shell.heartbeat(before[instance].member_id, 1) is E.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(again.member_id, 1, group_instance_id=instance) is E.NONE
    assert shell.sync(again).assignment == (b"0" if is_leader else b"1"), "its partitions are still its own"


def test_the_new_id_outlives_a_crash() -> None:
    shell = Shell()
    settled(shell, "a", "b")
    again = shell.join(group_instance_id="b")
    shell.restart()
    assert shell.heartbeat(again.member_id, 1, group_instance_id="b") is E.NONE


def test_the_old_id_stays_if_the_new_one_cannot_be_written() -> None:
    shell = Shell()
    before = settled(shell, "a", "b")
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert shell.join(group_instance_id="a").error is E.COORDINATOR_NOT_AVAILABLE
    assert shell.heartbeat(before["a"].member_id, 1, group_instance_id="a") is E.NONE
    assert shell.state() == "Stable"


def test_an_instance_that_changes_the_protocol_causes_a_rebalance() -> None:
    shell = Shell()
    handle = shell.join(group_instance_id="a", protocols=protocols("range", "sticky"))
    shell.settle()
    shell.finish([shell.answer(handle)])
    shell.join(group_instance_id="a", protocols=protocols("sticky"))
    assert shell.state() == "CompletingRebalance"


def test_an_instance_replaced_while_it_waits_is_fenced() -> None:
    shell = Shell()
    members = settled(shell, "a", "b")
    waiting = shell.join(
        member_id=members["a"].member_id, group_instance_id="a", protocols=protocols("range", topics=("u",))
    )
    shell.join(group_instance_id="a")
    assert shell.answer(waiting).error is E.FENCED_INSTANCE_ID


def test_an_absent_instance_keeps_its_place_in_a_rebalance() -> None:
    shell = Shell()
    members = settled(shell, "a", "b")
    stays, absent = ("a", "b") if members["a"].member_id == members["a"].leader else ("b", "a")
    handle = shell.join(member_id=members[stays].member_id, group_instance_id=stays, session_timeout_ms=1_000_000)
    shell.advance(5_000)
    shell.heartbeat(members[absent].member_id, 1, group_instance_id=absent)
    for _ in range(REBALANCE_MS // 5_000):
        shell.advance(5_000)
        shell.heartbeat(members[absent].member_id, 1, group_instance_id=absent)
    assert len(shell.answer(handle).members) == 2


def test_an_instance_leaves_by_its_name() -> None:
    shell = Shell()
    members = settled(shell, "a", "b")
    wrong = MemberIdentity(members["a"].member_id, "b")
    assert shell.leave(wrong, MemberIdentity("", "b")) == [E.FENCED_INSTANCE_ID, E.NONE]
    assert shell.heartbeat(members["b"].member_id, 1) is E.UNKNOWN_MEMBER_ID
