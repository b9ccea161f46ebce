"""Groups of consumers change their protocol while members are in them (KIP-848)."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from rayka.coordinator.groups.classic.requests import Protocol
from rayka.coordinator.groups.consumer.member import ConsumerMember
from rayka.coordinator.groups.consumer.protocol import ConsumerProtocolAssignment, write_assignment
from rayka.coordinator.groups.settings import MigrationPolicy
from rayka.errors import ErrorCode
from tests.unit.coordinator.clients import ClassicClient, ConsumerClient, topics
from tests.unit.coordinator.shell import Shell, join_request, protocols
from tests.unit.coordinator.test_consumer_group import SETTINGS

E = ErrorCode
Client = ClassicClient | ConsumerClient


def new_shell(policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL) -> Shell:
    shell = Shell(dataclasses.replace(SETTINGS, migration_policy=policy))
    shell.set_topics(topics("t"))
    return shell


def run(shell: Shell, *clients: Client, rounds: int = 20) -> None:
    for _ in range(rounds):
        for client in clients:
            client.step() if isinstance(client, ClassicClient) else client.heartbeat()
            shell.settle()
        shell.advance(500)


def group_type(shell: Shell) -> str:
    return shell.list_groups()[0].group_type


def counts(*clients: Client) -> list[int]:
    return sorted(len(client.partitions) for client in clients)


def test_a_consumer_joins_a_classic_group_without_stopping_it() -> None:
    shell = new_shell()
    old = [ClassicClient(shell), ClassicClient(shell)]
    run(shell, *old)
    assert counts(*old) == [2, 2]
    new = ConsumerClient(shell, "new")
    assert new.join().error is E.NONE
    assert group_type(shell) == "consumer"
    run(shell, *old, new)
    assert counts(*old, new) == [1, 1, 2]
    assert [client.commit(partition=next(iter(client.owned))[1]) for client in old] == [E.NONE, E.NONE]
    described = shell.describe().members
    assert sorted(member.member_type for member in described) == [0, 0, 1]


def test_when_the_last_consumer_leaves_the_group_is_classic_again() -> None:
    shell = new_shell()
    old = [ClassicClient(shell), ClassicClient(shell)]
    run(shell, *old)
    new = ConsumerClient(shell, "new")
    new.join()
    run(shell, *old, new)
    new.leave()
    assert group_type(shell) == "classic"
    assert shell.state() == "PreparingRebalance"
    run(shell, *old)
    assert (counts(*old), shell.state()) == ([2, 2], "Stable")


def test_when_the_last_consumer_dies_the_group_is_classic_again() -> None:
    shell = new_shell()
    old = ClassicClient(shell)
    run(shell, old)
    ConsumerClient(shell, "new").join()
    run(shell, old, rounds=100)
    assert (counts(old), group_type(shell)) == ([4], "classic")


def test_members_move_over_one_by_one() -> None:
    shell = new_shell()
    old = [ClassicClient(shell) for _ in range(3)]
    run(shell, *old)
    new: list[ConsumerClient] = []
    while old:
        assert old.pop().leave() is E.NONE
        client = ConsumerClient(shell, f"new{len(new)}")
        assert client.join().error is E.NONE
        new.append(client)
        run(shell, *old, *new)
        assert counts(*old, *new) == [1, 1, 2]
    assert {member.member_type for member in shell.describe().members} == {1}


def test_a_classic_member_joins_a_consumer_group() -> None:
    shell = new_shell()
    new, old = ConsumerClient(shell, "new"), ClassicClient(shell)
    new.join()
    run(shell, new, old)
    assert counts(new, old) == [2, 2]
    assert old.leave() is E.NONE
    run(shell, new)
    assert counts(new) == [4]


def test_a_static_member_changes_its_protocol_up_and_down() -> None:
    shell = new_shell()
    old = [ClassicClient(shell, group_instance_id=name) for name in "ij"]
    run(shell, *old)
    had = old[0].partitions
    new = ConsumerClient(shell, "new", instance_id="i")
    assert new.join().error is E.NONE
    assert new.partitions == had
    run(shell, new, old[1])
    back = ClassicClient(shell, group_instance_id="i")
    run(shell, back, old[1])
    assert group_type(shell) == "classic"
    assert (counts(back, old[1]), shell.state()) == ([2, 2], "Stable")


def test_a_static_consumer_that_comes_back_as_a_classic_member_is_late_no_more() -> None:
    """The others would heartbeat ten times as often, for as long as the coordinator runs."""
    shell = new_shell()
    old = ClassicClient(shell, group_instance_id="j")
    run(shell, old)
    new = ConsumerClient(shell, "new", instance_id="i")
    new.join()
    run(shell, old, new)
    for _ in range(8):
        shell.advance(5_000)
        old.step()
    back = ClassicClient(shell, group_instance_id="i")
    run(shell, old, back)
    assert group_type(shell) == "classic"
    third = ConsumerClient(shell, "third")
    third.join()
    run(shell, old, back, third)
    shell.advance(4_000)
    assert third.heartbeat().heartbeat_interval_ms == 5_000


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_a_classic_group_stays_classic(policy: MigrationPolicy) -> None:
    shell = new_shell(policy)
    old = ClassicClient(shell)
    run(shell, old)
    assert ConsumerClient(shell, "new").join().error is E.GROUP_ID_NOT_FOUND
    assert (group_type(shell), shell.state()) == ("classic", "Stable")


def test_a_group_that_must_not_be_downgraded_stays_a_consumer_group() -> None:
    shell = new_shell(MigrationPolicy.UPGRADE)
    old, new = ClassicClient(shell), ConsumerClient(shell, "new")
    run(shell, old)
    new.join()
    run(shell, old, new)
    new.leave()
    run(shell, old)
    assert (group_type(shell), counts(old)) == ("consumer", [4])


def test_groups_of_other_protocol_types_are_not_upgraded() -> None:
    shell = new_shell()
    handle = shell.join(protocol_type="connect", require_known_member_id=False)
    shell.settle()
    shell.finish([shell.answer(handle)])
    assert ConsumerClient(shell, "new").join().error is E.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("policy", "changes", "error"),
    [
        (MigrationPolicy.DISABLED, {}, E.INCONSISTENT_GROUP_PROTOCOL),
        (MigrationPolicy.BIDIRECTIONAL, {"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        (MigrationPolicy.BIDIRECTIONAL, {"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        (MigrationPolicy.BIDIRECTIONAL, {}, E.MEMBER_ID_REQUIRED),
        (MigrationPolicy.BIDIRECTIONAL, {"member_id": "x", "group_instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
        (MigrationPolicy.BIDIRECTIONAL, {"require_known_member_id": False}, E.NONE),
    ],
)
def test_joins_of_classic_members(policy: MigrationPolicy, changes: dict[str, object], error: ErrorCode) -> None:
    shell = new_shell(policy)
    ConsumerClient(shell, "new").join()
    assert shell.join(**changes).error is error


def test_classic_requests_of_unknown_members_are_refused_by_a_consumer_group() -> None:
    shell = new_shell()
    new, old = ConsumerClient(shell, "new"), ClassicClient(shell)
    new.join()
    run(shell, new, old)
    assert shell.heartbeat("nobody", 1) is E.UNKNOWN_MEMBER_ID
    assert shell.heartbeat("new", new.epoch) is E.UNKNOWN_MEMBER_ID, "it does not speak this protocol"
    assert shell.heartbeat(old.member_id, 99) is E.ILLEGAL_GENERATION
    assert shell.sync(old.joined, protocol_name="other").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert shell.leave("nobody", "new") == [E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
    assert shell.heartbeat(old.member_id, old.generation_id) is E.NONE


def test_a_classic_member_that_does_not_rejoin_in_time_is_removed_from_a_consumer_group() -> None:
    shell = new_shell()
    new, old = ConsumerClient(shell, "new"), ClassicClient(shell, session_timeout_ms=600_000)
    new.join()
    run(shell, new, old)
    other = ConsumerClient(shell, "other")
    other.join()
    assert shell.heartbeat(old.member_id, old.generation_id) is E.REBALANCE_IN_PROGRESS
    for _ in range(13):
        shell.advance(5_000)
        shell.heartbeat(old.member_id, old.generation_id)
        new.heartbeat()
        other.heartbeat()
    run(shell, new, other)
    assert counts(new, other) == [2, 2]
    assert shell.heartbeat(old.member_id, old.generation_id) is E.UNKNOWN_MEMBER_ID


def test_waiting_members_join_again_when_a_group_is_converted() -> None:
    shell = new_shell()
    a, b = ClassicClient(shell), ClassicClient(shell)
    run(shell, a, b)
    waiting = shell.run(
        shell.core.join_group(
            join_request("g", a.member_id, "x", protocols=protocols("range", topics=("u",))), shell.now
        )
    )
    ConsumerClient(shell, "new").join()
    assert shell.answer(waiting).error is E.REBALANCE_IN_PROGRESS


def test_a_consumer_joins_a_classic_group_before_its_first_generation() -> None:
    shell = Shell(dataclasses.replace(SETTINGS, initial_rebalance_delay_ms=3_000))
    shell.set_topics(topics("t"))
    old, new = ClassicClient(shell), ConsumerClient(shell, "new")
    old.step()
    old.step()
    assert shell.state() == "PreparingRebalance"
    assert new.join().error is E.NONE
    run(shell, old, new)
    assert counts(old, new) == [2, 2]


def test_a_cooperative_member_keeps_its_partitions_when_a_rebalance_is_converted() -> None:
    """The rebalance had begun again before the leader's assignment came; such a member goes on reading meanwhile."""
    shell = new_shell()
    old, new = ClassicClient(shell), ConsumerClient(shell, "new")
    run(shell, old)
    for names in (("range",), ("range", "roundrobin")):
        assert shell.join(member_id=old.member_id, protocols=protocols(*names)).error is E.NONE
    assert shell.state() == "CompletingRebalance"
    assert new.join().error is E.NONE
    assert counts(old, new) == [0, 4]
    run(shell, old, new)
    assert counts(old, new) == [2, 2]


def test_a_group_whose_assignments_have_user_data_stays_classic() -> None:
    """Kafka Streams, for example: the assignors of the coordinator would leave the user data out."""
    shell = new_shell()
    (leader,) = shell.settled()
    again = shell.join(member_id=leader.member_id)
    assignment = write_assignment(ConsumerProtocolAssignment((), b"tasks"))
    assert shell.sync(again, {leader.member_id: assignment}).error is E.NONE
    assert ConsumerClient(shell, "new").join().error is E.GROUP_ID_NOT_FOUND
    assert shell.heartbeat(leader.member_id, again.generation_id) is E.NONE


NO_TOPICS = struct.pack(">hii", 0, -1, -1)
NO_NAME = struct.pack(">hihi", 0, 1, -1, -1)
NO_OWNED = struct.pack(">hiii", 1, 0, -1, -1)


@pytest.mark.parametrize("metadata", [NO_TOPICS, NO_NAME, NO_OWNED, b"\0"])
def test_a_group_with_a_malformed_subscription_stays_classic(metadata: bytes) -> None:
    shell = new_shell()
    shell.join(member_id=shell.known_member(), protocols=(Protocol("range", metadata),))
    shell.settle()
    assert ConsumerClient(shell, "new").join().error is E.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("metadata", [NO_TOPICS, NO_NAME, NO_OWNED, b"\0"])
def test_a_malformed_subscription_is_refused_by_a_consumer_group(metadata: bytes) -> None:
    shell = new_shell()
    ConsumerClient(shell, "new").join()
    joined = shell.join(protocols=(Protocol("range", metadata),), require_known_member_id=False)
    assert joined.error is E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("assignment", [struct.pack(">hii", 0, -1, -1), struct.pack(">hihi", 0, 1, -1, -1)])
def test_a_group_with_a_malformed_assignment_stays_classic(assignment: bytes) -> None:
    shell = new_shell()
    (leader,) = shell.settled()
    again = shell.join(member_id=leader.member_id)
    assert shell.sync(again, {leader.member_id: assignment}).error is E.NONE
    assert ConsumerClient(shell, "new").join().error is E.GROUP_ID_NOT_FOUND


def test_a_failed_conversion_leaves_no_trace() -> None:
    shell = new_shell()
    old = ClassicClient(shell)
    run(shell, old)
    before = shell.core.state.durable()
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert ConsumerClient(shell, "new").join().error is E.COORDINATOR_NOT_AVAILABLE
    assert shell.core.state.durable() == before
    assert shell.heartbeat(old.member_id, old.generation_id) is E.NONE


def test_conversions_outlive_a_crash() -> None:
    shell = new_shell()
    old, new = ClassicClient(shell), ConsumerClient(shell, "new")
    run(shell, old)
    new.join()
    shell.restart()
    assert group_type(shell) == "consumer"
    run(shell, old, new)
    assert counts(old, new) == [2, 2]
    new.leave()
    shell.restart()
    assert group_type(shell) == "classic"
    run(shell, old)
    assert counts(old) == [4]


def test_a_partition_assigned_twice_has_one_owner_after_the_conversion() -> None:
    shell = new_shell()
    a, b = ClassicClient(shell), ClassicClient(shell)
    for client in (a, b):
        everything = client._assign
        client._assign = lambda everything=everything: dict.fromkeys(  # type: ignore[method-assign,misc]
            everything(), next(iter(everything().values()))
        )
    run(shell, a, b)
    ConsumerClient(shell, "new").join()
    members = shell.core.state.groups["g"].members.values()
    held = [(t, p) for m in members if isinstance(m, ConsumerMember) for t, ps in m.assigned.items() for p in ps]
    assert len(held) == len(set(held))
