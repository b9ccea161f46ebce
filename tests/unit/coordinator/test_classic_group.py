"""The classic protocol: joining, syncing, staying alive and leaving, each error where Kafka gives it."""

from __future__ import annotations

import pytest

from rayka.coordinator.groups.classic.group import TRANSITIONS, ClassicGroupState
from rayka.coordinator.groups.classic.requests import JoinGroupResponse, MemberIdentity
from rayka.coordinator.groups.settings import GroupSettings
from rayka.errors import ErrorCode
from tests.unit.coordinator.shell import REBALANCE_MS, SESSION_MS, Shell, protocols

E = ErrorCode


def test_a_new_member_gets_an_id_and_comes_back_with_it() -> None:
    shell = Shell()
    first = shell.join()
    assert (first.error, first.member_id) == (E.MEMBER_ID_REQUIRED, "client-1")
    handle = shell.join(member_id=first.member_id)
    shell.settle()
    joined = shell.answer(handle)
    assert (joined.error, joined.generation_id, joined.leader) == (E.NONE, 1, "client-1")
    assert [member.member_id for member in joined.members] == ["client-1"]
    assert shell.state() == "CompletingRebalance"


def test_old_versions_join_without_a_known_member_id() -> None:
    shell = Shell()
    handle = shell.join(require_known_member_id=False)
    shell.settle()
    assert shell.answer(handle).error is E.NONE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_is_refused(changes: dict[str, object], error: ErrorCode) -> None:
    assert Shell().join(**changes).error is error


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": protocols("roundrobin")}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "group_instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_to_a_running_group_is_refused(changes: dict[str, object], error: ErrorCode) -> None:
    shell = Shell()
    shell.settled(2)
    assert shell.join(**changes).error is error
    assert shell.state() == "Stable"


def test_the_first_rebalance_waits_for_more_members_and_longer_while_they_come() -> None:
    shell = Shell(GroupSettings(initial_rebalance_delay_ms=3000))
    first = shell.join(require_known_member_id=False)
    shell.advance(2_000)
    second = shell.join(require_known_member_id=False)
    shell.advance(1_500)
    assert not shell.answers, "the second member started another delay"
    shell.advance(2_500)
    assert {shell.answer(first).generation_id, shell.answer(second).generation_id} == {1}


def test_members_that_start_together_are_one_generation_even_without_a_delay() -> None:
    shell = Shell(GroupSettings(initial_rebalance_delay_ms=0, initial_rebalance_quiet_ms=50))
    handles = []
    for _ in range(3):
        handles.append(shell.join(require_known_member_id=False))
        shell.advance(40)
    assert not shell.answers
    shell.advance(100)
    assert {shell.answer(handle).generation_id for handle in handles} == {1}


def test_the_first_delay_ends_with_the_rebalance_timeout() -> None:
    shell = Shell(GroupSettings(initial_rebalance_delay_ms=3000))
    handles = [shell.join(require_known_member_id=False, rebalance_timeout_ms=7_000)]
    for _ in range(7):
        shell.advance(1_000)
        handles.append(shell.join(require_known_member_id=False, rebalance_timeout_ms=7_000))
    shell.advance(0)
    assert shell.answers.keys() >= set(handles[:7])


def test_members_get_the_assignments_of_the_leader() -> None:
    shell = Shell()
    leader, follower = shell.settled(2)
    assert leader.members
    assert not follower.members
    assert shell.state() == "Stable"
    described = shell.describe_classic()
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    assert {m.member_id: m.assignment for m in described.members} == {leader.member_id: b"0", follower.member_id: b"1"}


def test_a_sync_after_the_assignment_is_answered_immediately() -> None:
    shell = Shell()
    _leader, follower = shell.settled(2)
    assert shell.sync(follower).assignment == b"1"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"group_id": "other"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"generation_id": 7}, E.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "roundrobin"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_is_refused(changes: dict[str, object], error: ErrorCode) -> None:
    shell = Shell()
    (member,) = shell.settled()
    assert shell.sync(member, **changes).error is error


def test_a_new_member_makes_the_others_join_again() -> None:
    shell = Shell()
    (old,) = shell.settled()
    new_id = shell.known_member()
    new = shell.join(member_id=new_id)
    assert shell.state() == "PreparingRebalance"
    assert shell.heartbeat(old.member_id, 1) is E.REBALANCE_IN_PROGRESS
    assert shell.sync(old).error is E.REBALANCE_IN_PROGRESS
    again = shell.join(member_id=old.member_id)
    assert isinstance(again, JoinGroupResponse), "it was the last to come"
    assert (again.generation_id, shell.answer(new).generation_id) == (2, 2)
    shell.finish([again, JoinGroupResponse(member_id=new_id, generation_id=2, leader=again.leader)])
    assert shell.state() == "Stable"


def test_a_follower_that_joins_again_unchanged_gets_the_same_generation() -> None:
    shell = Shell()
    leader, follower = shell.settled(2)
    again = shell.join(member_id=follower.member_id)
    assert (again.generation_id, again.leader, again.members) == (1, leader.member_id, ())
    assert shell.state() == "Stable"


@pytest.mark.parametrize("who", [0, 1])
def test_a_leader_or_a_changed_follower_starts_a_rebalance(who: int) -> None:
    shell = Shell()
    members = shell.settled(2)
    changes = {} if who == 0 else {"protocols": protocols("range", topics=("t", "u"))}
    shell.join(member_id=members[who].member_id, **changes)
    assert shell.state() == "PreparingRebalance"


def test_a_member_that_missed_the_answer_to_its_join_gets_it_again() -> None:
    shell = Shell()
    ids = [shell.known_member() for _ in range(2)]
    handles = [shell.join(member_id=member_id) for member_id in ids]
    shell.settle()
    leader = shell.answer(handles[0])
    again = shell.join(member_id=leader.member_id)
    assert again == leader
    assert shell.state() == "CompletingRebalance"


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    shell = Shell()
    stays, goes = (
        member.member_id for member in shell.settled(2, session_timeout_ms=600_000, rebalance_timeout_ms=20_000)
    )
    handle = shell.join(member_id=stays, protocols=protocols("range", topics=("u",)), rebalance_timeout_ms=20_000)
    shell.advance(19_999)
    assert not shell.answers
    shell.advance(1)
    assert [member.member_id for member in shell.answer(handle).members] == [stays]
    assert shell.heartbeat(goes, 1) is E.UNKNOWN_MEMBER_ID


def test_another_member_leads_when_the_leader_does_not_rejoin() -> None:
    shell = Shell()
    _leader, follower = shell.settled(2, session_timeout_ms=600_000)
    handle = shell.join(member_id=follower.member_id, protocols=protocols("range", topics=("u",)))
    shell.advance(REBALANCE_MS)
    joined = shell.answer(handle)
    assert joined.leader == follower.member_id


def test_a_member_that_never_syncs_is_removed() -> None:
    shell = Shell()
    ids = [shell.known_member(session_timeout_ms=600_000) for _ in range(2)]
    handles = [shell.join(member_id=i, session_timeout_ms=600_000) for i in ids]
    shell.settle()
    joined = [shell.answer(handle) for handle in handles]
    leader = next(j for j in joined if j.member_id == j.leader)
    shell.sync(leader, {})
    shell.advance(REBALANCE_MS)
    assert shell.state() == "PreparingRebalance"
    assert shell.heartbeat(leader.member_id, 1) is E.REBALANCE_IN_PROGRESS


def test_a_member_whose_session_expires_is_removed_and_the_others_rebalance() -> None:
    shell = Shell()
    stays, goes = (member.member_id for member in shell.settled(2))
    for _ in range(3):
        shell.advance(SESSION_MS // 2)
        shell.heartbeat(stays, 1)
    assert shell.state() == "PreparingRebalance"
    assert shell.heartbeat(goes, 1) is E.UNKNOWN_MEMBER_ID


def test_waiting_for_the_others_keeps_a_member_alive() -> None:
    shell = Shell()
    a, b = (member.member_id for member in shell.settled(2))
    handle = shell.join(member_id=a, protocols=protocols("range", topics=("u",)))
    for _ in range(5):
        shell.advance(SESSION_MS - 1)
        assert shell.heartbeat(b, 1) is E.REBALANCE_IN_PROGRESS
    shell.join(member_id=b)
    assert shell.answer(handle).error is E.NONE


def test_a_new_member_whose_connection_is_lost_is_removed() -> None:
    shell = Shell()
    (old,) = shell.settled(rebalance_timeout_ms=3_600_000)
    shell.join(member_id=shell.known_member())
    for _ in range(40):
        shell.advance(SESSION_MS - 1)
        shell.heartbeat(old.member_id, 1)
    again = shell.join(member_id=old.member_id)
    assert [member.member_id for member in again.members] == [old.member_id]


def test_a_pending_member_that_never_comes_back_does_not_block_the_group() -> None:
    shell = Shell()
    (old,) = shell.settled(session_timeout_ms=30_000)
    shell.known_member()
    handle = shell.join(member_id=old.member_id)
    assert isinstance(handle, int), "the pending member may still come"
    shell.advance(SESSION_MS)
    assert shell.answer(handle).generation_id == 2


@pytest.mark.parametrize("delay_ms", [0, 3_000])
def test_a_pending_member_joins_after_the_only_other_member_has_left(delay_ms: int) -> None:
    """While the group's first rebalance is delayed, and in a later one."""
    shell = Shell(GroupSettings(initial_rebalance_delay_ms=delay_ms, initial_rebalance_quiet_ms=0))
    old, pending = shell.known_member(), shell.known_member()
    shell.join(member_id=old)
    shell.settle()
    assert shell.leave(old) == [E.NONE]
    assert shell.state() == "PreparingRebalance"
    handle = shell.join(member_id=pending)
    shell.advance(2 * delay_ms)
    joined = handle if delay_ms == 0 else shell.answer(handle)
    assert (joined.error, joined.leader) == (E.NONE, pending)


@pytest.mark.parametrize(
    ("member_id", "generation_id", "group_id", "error"),
    [
        ("m", 1, "", E.INVALID_GROUP_ID),
        ("m", 1, "other", E.UNKNOWN_MEMBER_ID),
        ("nobody", 1, "g", E.UNKNOWN_MEMBER_ID),
        ("m", 0, "g", E.ILLEGAL_GENERATION),
        ("m", 1, "g", E.NONE),
    ],
)
def test_heartbeats(member_id: str, generation_id: int, group_id: str, error: ErrorCode) -> None:
    shell = Shell()
    (member,) = shell.settled()
    assert shell.heartbeat(member_id.replace("m", member.member_id), generation_id, group_id) is error


def test_the_group_is_empty_when_the_last_member_leaves() -> None:
    shell = Shell()
    a, b = shell.settled(2)
    assert shell.leave(a.member_id) == [E.NONE]
    assert shell.state() == "PreparingRebalance"
    assert shell.leave(b.member_id) == [E.NONE]
    assert shell.state() == "Empty"
    assert shell.leave(b.member_id) == [E.UNKNOWN_MEMBER_ID]


def test_several_members_leave_in_one_request() -> None:
    shell = Shell()
    members = shell.settled(3)
    errors = shell.leave(members[0].member_id, "nobody", MemberIdentity("", "no-instance"), members[2].member_id)
    assert errors == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.NONE]
    again = shell.join(member_id=members[1].member_id)
    assert [member.member_id for member in again.members] == [members[1].member_id]


def test_leaving_a_group_that_does_not_exist() -> None:
    assert Shell().leave("m") == [E.UNKNOWN_MEMBER_ID]
    assert Shell().leave("m", group_id="") == [E.INVALID_GROUP_ID]


def test_a_waiting_join_is_answered_when_its_member_leaves() -> None:
    shell = Shell()
    a, _b = shell.settled(2)
    handle = shell.join(member_id=a.member_id)
    shell.leave(a.member_id)
    assert shell.answer(handle).error is E.UNKNOWN_MEMBER_ID


def test_a_full_group_refuses_new_members() -> None:
    shell = Shell(GroupSettings(initial_rebalance_delay_ms=0, initial_rebalance_quiet_ms=0, max_size=2))
    a, _ = shell.settled(2)
    assert shell.join().error is E.GROUP_MAX_SIZE_REACHED
    assert isinstance(shell.join(member_id=a.member_id), int), "a member may join again"


def test_members_vote_for_the_protocol() -> None:
    shell = Shell()
    wishes = [("a", "b", "c"), ("b", "a"), ("b", "c", "a")]
    handles = [shell.join(require_known_member_id=False, protocols=protocols(*wish)) for wish in wishes]
    shell.settle()
    assert {shell.answer(handle).protocol_name for handle in handles} == {"b"}


def test_every_state_that_is_reached_can_be_left() -> None:
    assert set(TRANSITIONS) == set(ClassicGroupState)
    assert all(ClassicGroupState.DEAD in after for after in TRANSITIONS.values())
    assert set[ClassicGroupState]().union(*TRANSITIONS.values()) == set(ClassicGroupState)


def test_waiting_requests_are_answered_when_the_coordinator_moves() -> None:
    shell = Shell()
    a, _b = shell.settled(2)
    handle = shell.join(member_id=a.member_id)
    assert [(c.request_id, c.response.error) for c in shell.core.unload()] == [(handle, E.NOT_COORDINATOR)]
