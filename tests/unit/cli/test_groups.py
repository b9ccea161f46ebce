"""The words and tables of `rayka groups`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rayka.cli.commands.group_offsets import remark_on_deletion, reset_offsets
from rayka.cli.commands.groups import STATES, chosen, remark_on
from rayka.cli.commands.offset_reset import parse_duration, reset_of, topics_of
from rayka.cli.exits import CliError, Exit
from rayka.cli.tables import print_list
from rayka.cli.text.group_tables import assignment_text, group_fields, list_text, members_text, offsets_text, state_text
from rayka.client.admin.group_offsets import GroupDescription, GroupOffset, MemberDescription, OffsetReset
from rayka.coordinator.groups.requests import ListedGroup
from rayka.errors import ErrorCode
from rayka.metadata.image import BrokerImage
from rayka.types import TopicPartition

WHERE = ("to_earliest", "to_latest", "to_current", "to_offset", "shift_by", "to_datetime", "by_duration")
NODE = BrokerImage(broker_id=1, host="127.0.0.1", port=9092, rack=None, fenced=False, node_id="n", epoch=1)
PLACES = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 0))
MEMBER = MemberDescription("c-1", None, "client", "/127.0.0.1", PLACES[:2])
OFFSETS = (
    GroupOffset(PLACES[0], 4, 10, MEMBER),
    GroupOffset(PLACES[1], None, 5, MEMBER),
    GroupOffset(PLACES[2], 3, None),
)
GROUP = GroupDescription("g", "Classic", "Stable", "range", NODE, (MEMBER,), OFFSETS)


@pytest.mark.parametrize(
    ("words", "topics"),
    [
        (["a"], {"a": None}),
        (["a:0,2", "b"], {"a": [0, 2], "b": None}),
        (["a:0", "a:1"], {"a": [0, 1]}),
        (["a:0", "a"], {"a": None}),
        (["a", "a:0"], {"a": None}),
    ],
)
def test_topics_and_their_partitions(words: list[str], topics: dict[str, list[int] | None]) -> None:
    assert topics_of(words) == topics


@pytest.mark.parametrize("word", ["", ":1", "a:", "a:x", "a:1,", "a:-1", "a:²"])
def test_words_that_name_no_partitions_are_refused(word: str) -> None:
    with pytest.raises(CliError) as error:
        topics_of([word])
    assert error.value.exit_code is Exit.USAGE


@pytest.mark.parametrize(
    ("words", "reset"),
    [
        (["--to-earliest"], OffsetReset.to_earliest()),
        (["--to-latest"], OffsetReset.to_latest()),
        (["--to-current"], OffsetReset.to_current()),
        (["--by-duration", "P1DT1S"], OffsetReset.to_time(1_700_000_000_000 - 86_401_000)),
        (["--to-offset", "0"], OffsetReset.to_offset(0)),
        (["--shift-by", "-3"], OffsetReset.shift_by(-3)),
        (["--to-datetime", "@1700000000000"], OffsetReset.to_time(1_700_000_000_000)),
        (["--to-datetime", "1970-01-01T00:00:01.5Z"], OffsetReset.to_time(1_500)),
    ],
)
def test_where_a_reset_leads(words: list[str], reset: OffsetReset) -> None:
    options = reset_offsets.make_context("reset-offsets", ["g", "--all-topics", *words]).params
    where = {name: options[name] for name in WHERE}
    assert reset_of(where, now_ms=1_700_000_000_000) == reset


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("P7D", 604_800_000), ("PT1H30M", 5_400_000), ("PT0.5S", 500), ("pt0s", 0), ("P1DT2H3M4S", 93_784_000)],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "PT1D", "P-1D", "P1Y", "PT1.H", "PT1S "])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(CliError) as error:
        parse_duration(text)
    assert error.value.exit_code is Exit.USAGE


def test_states_are_known_by_any_case() -> None:
    assert chosen("stable, EMPTY", STATES, "--state") == ["Stable", "Empty"]
    assert chosen("", STATES, "--state") == chosen(None, STATES, "--state") == []
    with pytest.raises(CliError, match="--state 'busy'"):
        chosen("busy", STATES, "--state")


def test_offsets_are_shown_as_kafka_shows_them() -> None:
    head, *lines = offsets_text(GROUP).splitlines()
    columns = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
    rows = [line.split() for line in lines]
    assert " ".join(head.split()) == columns
    assert rows == [
        ["g", "a", "0", "4", "10", "6", "c-1", "/127.0.0.1", "client"],
        ["g", "a", "2", "-", "5", "-", "c-1", "/127.0.0.1", "client"],
        ["g", "b", "0", "3", "-", "-", "-", "-", "-"],
    ]


def test_members_and_state() -> None:
    assert members_text(GROUP).splitlines()[1].split() == ["g", "c-1", "/127.0.0.1", "client", "2"]
    row = members_text(GROUP, verbose=True).splitlines()[1].split()
    assert row[5:] == ["-", "a:0,2", "-", "-"]
    row = state_text(GROUP).splitlines()[1].split()
    assert row == ["g", "127.0.0.1:9092", "(1)", "range", "Stable", "1"]
    assert (assignment_text(PLACES), assignment_text(())) == ("a:0,2;b:0", "-")


def test_json_has_everything() -> None:
    fields = json.loads(json.dumps(group_fields(GROUP)))
    assert (fields["group"], fields["type"], fields["state"], fields["coordinator"]) == ("g", "Classic", "Stable", 1)
    assert [one["lag"] for one in fields["offsets"]] == [6, None, None]
    assert [one["consumer_id"] for one in fields["offsets"]] == ["c-1", "c-1", None]
    assert fields["members"][0]["assignment"] == [["a", 0], ["a", 2]]


def test_a_migrating_group_shows_epochs_targets_and_upgraded_members() -> None:
    new = replace(MEMBER, group_instance_id="i", epoch=6, target=PLACES[:1], is_upgraded=True)
    old = replace(MEMBER, member_id="c-2", epoch=7, assignment=(), is_upgraded=False)
    group = replace(GROUP, members=(new, old), state="Reconciling", group_epoch=8, assignment_epoch=7)
    head, *rows = members_text(group, verbose=True).splitlines()
    assert head.split() == [
        "GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS",
        "CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED",
    ]  # fmt: skip
    assert rows[0].split()[5:] == ["2", "6", "a:0,2", "7", "a:0", "true"]
    assert rows[1].split()[5:] == ["0", "7", "-", "7", "-", "false"]
    assert state_text(group, verbose=True).splitlines()[1].split()[4:] == ["Reconciling", "8", "7", "2"]
    assert (remark_on(group), remark_on(GROUP)) == ("is rebalancing", None)
    assert remark_on(replace(GROUP, members=(), state="Empty")) == "has no members"


def test_a_list_has_the_columns_that_are_asked_for() -> None:
    groups = [ListedGroup("g", "consumer", "Stable", "Classic")]
    assert list_text(groups, types=False, states=False) == "g"
    assert list_text(groups, types=False, states=True).splitlines()[1].split() == ["g", "Stable"]
    assert list_text(groups, types=True, states=True).splitlines()[1].split() == ["g", "Classic", "Stable"]


def test_verbose_offsets_have_the_leader_epoch() -> None:
    offset = GroupOffset(PLACES[0], 4, 10, None, leader_epoch=3)
    head, row = offsets_text(replace(GROUP, offsets=(offset,)), verbose=True).splitlines()
    assert head.split()[3] == "LEADER-EPOCH"
    assert row.split() == ["g", "a", "0", "3", "4", "10", "6", "-", "-", "-"]


def test_an_empty_list_is_a_note_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    for types, states in ((False, False), (True, True)):
        print_list(list_text([], types=types, states=states), "there are no such groups")
        assert capsys.readouterr() == ("", "rayka: there are no such groups\n")


def test_offsets_that_members_would_commit_again_are_explained() -> None:
    refused = dict.fromkeys(PLACES, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    assert remark_on_deletion("billing", refused) == (
        "members of group billing still read a, b, and would commit these offsets again: stop the members, or let them"
        " unsubscribe, and repeat the command"
    )
    assert remark_on_deletion("billing", {PLACES[0]: ErrorCode.NONE, PLACES[1]: ErrorCode.NOT_COORDINATOR}) is None
