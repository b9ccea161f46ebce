"""The consumer protocol (KIP-848): joining, epochs, reconciliation, leaving, each error where Kafka gives it."""

from __future__ import annotations

from typing import Any

import pytest

from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest
from rayka.coordinator.groups.coordinator import GroupCoordinator
from rayka.coordinator.groups.records import ConsumerGroupRegularExpressionKey, TargetPartitions
from rayka.coordinator.groups.requests import OffsetFetchRequest
from rayka.coordinator.groups.settings import GroupSettings, ModernGroupSettings
from rayka.coordinator.spec import CoordinatorConfigs
from rayka.errors import ErrorCode
from tests.unit.coordinator.clients import ConsumerClient, topic_id, topics
from tests.unit.coordinator.shell import Shell

E = ErrorCode
T = topic_id("t")
SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=0, initial_rebalance_quiet_ms=0, consumer=ModernGroupSettings(assignment_interval_ms=0)
)


def new_shell(settings: GroupSettings = SETTINGS) -> Shell:
    shell = Shell(settings)
    shell.set_topics(topics("t"))
    return shell


def settle(*clients: ConsumerClient, rounds: int = 4) -> None:
    for _ in range(rounds):
        for client in clients:
            client.heartbeat()


def owned(*clients: ConsumerClient) -> list[list[int]]:
    return [sorted(client.owned.get(T, ())) for client in clients]


def test_the_first_member_gets_everything() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a")
    response = a.join()
    assert (response.error, response.member_id, response.member_epoch) == (E.NONE, "a", 1)
    assert response.assignment == (TargetPartitions(T, (0, 1, 2, 3)),)
    assert shell.state() == "Stable"
    assert a.heartbeat().assignment is None, "nothing new"


def test_a_second_member_gets_its_half_when_the_first_has_revoked_it() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    assert b.join().assignment == ()
    assert (b.epoch, shell.state()) == (2, "Reconciling")
    assert (a.heartbeat().member_epoch, len(a.owned[T])) == (1, 2), "it is asked to give two up"
    assert owned(b) == [[]]
    b.heartbeat()
    assert owned(b) == [[]], "they are not given up yet"
    assert a.heartbeat().member_epoch == 2
    b.heartbeat()
    assert sorted(a.owned[T] | b.owned[T]) == [0, 1, 2, 3]
    assert shell.state() == "Stable"


def test_a_lost_answer_is_given_again() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    a.heartbeat()
    a.heartbeat()
    b.heartbeat()
    epoch, had = b.epoch, b.owned
    ConsumerClient(shell, "c").join()
    settle(a)
    b.epoch, b.owned = epoch - 1, {}
    again = b.heartbeat(topic_partitions=(), rebalance_timeout_ms=60_000, subscribed_topic_names=("t",))
    assert again.error is E.FENCED_MEMBER_EPOCH
    b.epoch, b.owned = epoch, had
    assert b.heartbeat(rebalance_timeout_ms=60_000, subscribed_topic_names=("t",), topic_partitions=()).assignment


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, E.INVALID_REQUEST),
        ({"member_id": ""}, E.INVALID_REQUEST),
        ({"instance_id": ""}, E.INVALID_REQUEST),
        ({"rack_id": " "}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
        ({"topic_partitions": None}, E.INVALID_REQUEST),
        ({"topic_partitions": (TargetPartitions(T, (0,)),)}, E.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, E.INVALID_REQUEST),
        ({"member_epoch": -3}, E.INVALID_REQUEST),
        ({"member_epoch": -2}, E.INVALID_REQUEST),
        ({"server_assignor": "best"}, E.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 1}, E.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, E.GROUP_ID_NOT_FOUND),
        ({"subscribed_topic_regex": "("}, E.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_names": ()}, E.NONE),
    ],
)
def test_requests_are_checked(changes: dict[str, Any], error: ErrorCode) -> None:
    response = ConsumerClient(new_shell(), "a").join(**changes)
    assert response.error is error
    assert bool(response.error_message) is (error is not E.NONE)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"member_epoch": 2}, E.FENCED_MEMBER_EPOCH),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({}, E.NONE),
    ],
)
def test_heartbeats_of_unknown_members_are_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    a = ConsumerClient(new_shell(), "a")
    a.join()
    assert a.heartbeat(**changes).error is error


def test_a_full_group_refuses_new_members() -> None:
    shell = new_shell(GroupSettings(consumer_max_size=1))
    ConsumerClient(shell, "a").join()
    assert ConsumerClient(shell, "b").join().error is E.GROUP_MAX_SIZE_REACHED
    assert ConsumerClient(shell, "a").join().error is E.NONE


def test_the_partitions_of_a_member_that_leaves_go_to_the_others() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    settle(a, b)
    assert b.leave().member_epoch == -1
    a.heartbeat()
    assert owned(a) == [[0, 1, 2, 3]]
    a.leave()
    assert shell.state() == "Empty"
    assert ConsumerClient(shell, "c").join().member_epoch == shell.core.state.groups["g"].epoch  # type: ignore[union-attr]


def test_a_member_is_removed_when_its_session_expires() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    settle(a, b)
    for _ in range(10):
        shell.advance(5_000)
        a.heartbeat()
    assert owned(a) == [[0, 1, 2, 3]]
    assert b.heartbeat().error is E.UNKNOWN_MEMBER_ID


def test_members_use_the_short_interval_when_the_session_of_another_is_nearly_over() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    settle(a, b)
    shell.advance(39_400)
    assert a.heartbeat().heartbeat_interval_ms == 5_000
    shell.advance(200)
    assert a.heartbeat().heartbeat_interval_ms == 500, "b has been silent for longer than it should"
    shell.advance(5_400)
    a.heartbeat()
    assert owned(a) == [[0, 1, 2, 3]]
    assert a.heartbeat().heartbeat_interval_ms == 500
    shell.advance(5_000)
    assert a.heartbeat().heartbeat_interval_ms == 5_000


def test_an_overdue_member_that_returns_is_no_longer_overdue() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    settle(a, b)
    shell.advance(40_000)
    assert a.heartbeat().heartbeat_interval_ms == 500
    b.heartbeat()
    assert a.heartbeat().heartbeat_interval_ms == 5_000
    shell.advance(40_000)
    b.leave()
    settle(a)
    shell.advance(6_000)
    assert a.heartbeat().heartbeat_interval_ms == 5_000, "who has left is not late"


def test_the_session_of_one_group_can_be_set() -> None:
    shell = new_shell()
    own = {"consumer.session.timeout.ms": 50_000, "consumer.heartbeat.interval.ms": 9_000}
    shell.core.on_new_configs(CoordinatorConfigs({}, {"g": own}))
    a = ConsumerClient(shell, "a")
    a.join()
    shell.advance(48_000)
    assert a.heartbeat().heartbeat_interval_ms == 9_000


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    a.heartbeat()
    stuck = a.epoch
    for _ in range(13):
        shell.advance(5_000)
        a.epoch = stuck
        a.heartbeat(topic_partitions=None)
        b.heartbeat()
    assert owned(b) == [[0, 1, 2, 3]]


def test_a_member_has_its_whole_rebalance_timeout_for_each_revocation() -> None:
    """While a group grows one after the other, its first member has always something more to give up."""
    shell = new_shell()
    shell.set_topics(topics("t", partitions=120, version=2))
    a, *others = (ConsumerClient(shell, f"m{number}") for number in range(10))
    a.join()
    for number, joining in enumerate(others):
        joining.join()
        assert a.heartbeat().error is E.NONE
        for _ in range(2):
            shell.advance(5_000)
            for member in others[:number]:
                member.heartbeat()
    assert shell.now.ms > 60_000
    assert a.heartbeat().error is E.NONE
    assert a.partitions


def test_members_use_the_short_interval_while_the_group_changes() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a")
    assert a.join().heartbeat_interval_ms == 500
    shell.advance(5_000)
    assert a.heartbeat().heartbeat_interval_ms == 5_000
    b = ConsumerClient(shell, "b")
    assert b.join().heartbeat_interval_ms == 500
    assert a.heartbeat().heartbeat_interval_ms == 500


def test_members_that_join_together_are_assigned_together() -> None:
    shell = new_shell(GroupSettings())
    a, *others = clients = [ConsumerClient(shell, f"m{i}") for i in range(4)]
    a.join()
    for client in others:
        client.join()
    assert shell.describe().assignment_epoch == 1
    assert shell.state() == "Assigning"
    shell.advance(1_000)
    settle(*clients)
    assert shell.describe().assignment_epoch == 4
    assert sorted(map(len, owned(*clients))) == [1, 1, 1, 1]


def test_new_partitions_and_topics_are_assigned() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a", "t", "later")
    a.join()
    shell.set_topics(topics("t", partitions=6, version=2))
    a.heartbeat()
    assert owned(a) == [[0, 1, 2, 3, 4, 5]]
    shell.set_topics(topics("t", "later", partitions=6, version=3))
    a.heartbeat()
    assert a.owned.keys() == {T, topic_id("later")}
    shell.set_topics(topics("later", partitions=6, version=4))
    settle(a)
    assert a.owned.keys() == {topic_id("later")}


def test_metadata_that_changes_nothing_for_the_group_costs_no_rebalance() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a")
    a.join()
    size = len(shell.log)
    shell.set_topics(topics("t", "unrelated", version=2))
    a.heartbeat()
    assert len(shell.log) == size


def test_a_member_can_change_its_subscription() -> None:
    shell = new_shell()
    shell.set_topics(topics("t", "u", version=2))
    a = ConsumerClient(shell, "a")
    a.join()
    a.heartbeat(subscribed_topic_names=("u",))
    settle(a)
    assert a.owned == {topic_id("u"): frozenset(range(4))}


def test_a_pattern_matches_whole_topic_names() -> None:
    shell = new_shell()
    shell.set_topics(topics("t", "tt", "at", version=2))
    a = ConsumerClient(shell, "a", subscribed_topic_regex="t+")
    a.join()
    assert a.owned.keys() == {T, topic_id("tt")}
    shell.set_topics(topics("t", "tt", "at", "ttt", version=3))
    a.heartbeat()
    assert a.owned.keys() == {T, topic_id("tt"), topic_id("ttt")}
    a.heartbeat(subscribed_topic_regex="", subscribed_topic_names=("at",))
    settle(a)
    assert a.owned.keys() == {topic_id("at")}
    tombstone = [r for r in shell.records if isinstance(r.key, ConsumerGroupRegularExpressionKey)][-1]
    assert tombstone.value is None


def test_members_vote_for_the_assignor() -> None:
    shell = new_shell()
    shell.set_topics(topics("t", "u", partitions=3, version=2))
    a = ConsumerClient(shell, "a", "t", "u", server_assignor="range")
    b = ConsumerClient(shell, "b", "t", "u", server_assignor="range")
    a.join()
    b.join()
    settle(a, b)
    assert shell.describe().assignor_name == "range"
    assert sorted(a.owned[T]) == sorted(a.owned[topic_id("u")]) == [0, 1]


def test_a_static_member_that_comes_back_keeps_its_partitions() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a", instance_id="i"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    settle(a, b)
    had = dict(a.owned)
    thief = ConsumerClient(shell, "thief", instance_id="i")
    assert thief.join().error is E.UNRELEASED_INSTANCE_ID
    assert a.leave(epoch=-2).member_epoch == -2
    b.heartbeat()
    assert len(owned(b)[0]) == 2, "its partitions are kept for it"
    again = ConsumerClient(shell, "a2", instance_id="i")
    assert again.join().error is E.NONE
    assert again.owned == had
    assert a.heartbeat(member_epoch=2).error is E.FENCED_INSTANCE_ID


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_static_member_joins_again_under_its_own_id(is_fenced: bool) -> None:
    """It missed the answer to its join, or was fenced later: Kafka's clients keep the member id then."""
    shell = new_shell()
    a = ConsumerClient(shell, "a", instance_id="i")
    a.loses_answers = not is_fenced
    a.join()
    if is_fenced:
        assert a.heartbeat(member_epoch=9).error is E.FENCED_MEMBER_EPOCH
    a.loses_answers = False
    assert a.join().error is E.NONE
    assert owned(a) == [[0, 1, 2, 3]]
    shell.restart()
    assert a.heartbeat().error is E.NONE


def test_a_static_member_that_does_not_come_back_is_removed() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a", instance_id="i"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    settle(a, b)
    a.leave(epoch=-2)
    for _ in range(10):
        shell.advance(5_000)
        b.heartbeat()
    assert owned(b) == [[0, 1, 2, 3]]


def test_commits_need_the_epoch_of_the_assignment_of_their_partition() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    old = a.epoch
    assert a.commit() is E.NONE
    b.join()
    settle(a, b)
    kept, lost = min(a.owned[T]), min(b.owned[T])
    assert a.commit(partition=kept) is E.NONE
    assert a.commit(partition=kept, generation_id_or_member_epoch=old) is E.NONE, "it never let go of it"
    assert a.commit(partition=lost, generation_id_or_member_epoch=old) is E.STALE_MEMBER_EPOCH
    assert a.commit(generation_id_or_member_epoch=a.epoch + 1) is E.STALE_MEMBER_EPOCH
    assert a.commit(member_id="nobody") is E.UNKNOWN_MEMBER_ID
    assert a.commit(knows_member_epochs=False) is E.UNSUPPORTED_VERSION
    assert shell.commit() is E.UNKNOWN_MEMBER_ID, "the group is not empty"


def test_fetching_offsets_as_a_member() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a")
    a.join()
    for member_id, epoch, error in [
        ("a", 1, E.NONE),
        (None, -1, E.NONE),
        ("a", 0, E.STALE_MEMBER_EPOCH),
        ("nobody", 1, E.UNKNOWN_MEMBER_ID),
    ]:
        assert shell.query(OffsetFetchRequest("g", (), member_id, epoch)).error is error


def test_a_failed_append_leaves_no_trace() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert a.join().error is E.COORDINATOR_NOT_AVAILABLE
    assert shell.state() == ""
    a.join()
    before = shell.core.state.durable()
    shell.fail_next = E.KAFKA_STORAGE_ERROR
    assert b.join().error is E.NOT_COORDINATOR
    assert shell.core.state.durable() == before


def test_a_subscription_that_can_not_be_appended_counts_when_it_is_sent_again() -> None:
    shell = new_shell()
    shell.set_topics(topics("t", "u", version=2))
    a = ConsumerClient(shell, "a", "t", "u")
    a.join()
    settle(a)
    before, epoch = shell.core.state.durable(), a.epoch
    a.names = ("t",)
    shell.fail_next = E.NOT_ENOUGH_REPLICAS
    assert a.heartbeat(subscribed_topic_names=a.names).error is E.COORDINATOR_NOT_AVAILABLE
    assert (shell.core.state.durable(), a.epoch, a.owned.keys()) == (before, epoch, {T, topic_id("u")})
    settle(a)
    assert (a.epoch > epoch, a.owned.keys()) == (True, {T})


def test_a_restarted_coordinator_continues_from_its_log() -> None:
    shell = new_shell()
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    b.join()
    a.heartbeat()
    shell.restart()
    assert a.heartbeat().error is E.NONE
    settle(a, b)
    assert sorted(map(len, owned(a, b))) == [2, 2]
    shell.restart()
    assert shell.state() == "Stable"


def test_a_consumer_group_is_described_with_its_members() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a", instance_id="i", rack_id="r")
    a.join()
    group = shell.describe()
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Stable",
        1,
        1,
        "uniform",
    )
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "r", 1)
    assert (member.subscribed_topic_names, member.member_type) == (("t",), 1)
    assert member.assignment == member.target_assignment == ((T, "t", (0, 1, 2, 3)),)
    assert shell.describe_classic().error is E.GROUP_ID_NOT_FOUND
    assert shell.describe("none").error is E.GROUP_ID_NOT_FOUND
    assert [(g.group_type, g.protocol_type) for g in shell.list_groups(("STABLE",), ("CONSUMER",))] == [
        ("consumer", "consumer")
    ]
    assert shell.list_groups((), ("classic",)) == ()


def test_an_empty_group_takes_the_protocol_of_its_next_member() -> None:
    shell = new_shell()
    (classic,) = shell.settled()
    shell.leave(classic.member_id)
    a = ConsumerClient(shell, "a")
    assert a.join().error is E.NONE
    a.leave()
    (again,) = shell.settled()
    assert shell.list_groups()[0].group_type == "classic"
    shell.restart()
    assert shell.heartbeat(again.member_id, again.generation_id) is E.NONE


def test_a_heartbeat_that_changes_nothing_has_no_records() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a")
    a.join()
    request = ConsumerGroupHeartbeatRequest("g", "a", 1, client_id="client", client_host="/127.0.0.1")
    result = shell.core.consumer_group_heartbeat(request, shell.now)
    assert result.records == ()


def test_no_member_loses_partitions_before_the_first_metadata_image() -> None:
    shell = new_shell()
    a = ConsumerClient(shell, "a")
    a.join()
    core = GroupCoordinator(SETTINGS)
    for record in shell.records:
        core.replay(record)
    core.on_loaded(shell.now)
    request = ConsumerGroupHeartbeatRequest("g", "a", 1)
    loading = core.consumer_group_heartbeat(request, shell.now)
    assert (loading.response.error, loading.records) == (E.COORDINATOR_LOAD_IN_PROGRESS, ())  # type: ignore[union-attr]
    core.on_new_metadata_image(topics("t"))
    assert core.consumer_group_heartbeat(request, shell.now).response.error is E.NONE  # type: ignore[union-attr]
