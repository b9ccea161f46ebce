"""The words and tables of `rayka groups`."""

from __future__ import annotations

import json

import pytest

from rayka.cli.exits import CliError, Exit
from rayka.cli.groups import assignment_text, group_fields, members_text, offsets_text, reset_of, state_text, topics_of
from rayka.cli.main import parser
from rayka.client.group_offsets import GroupDescription, GroupMember, GroupOffset, OffsetReset
from rayka.metadata.image import BrokerImage
from rayka.types import TopicPartition

NODE = BrokerImage(broker_id=1, host="127.0.0.1", port=9092, rack=None, fenced=False, node_id="n", epoch=1)
PLACES = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 0))
MEMBER = GroupMember("c-1", None, "client", "/127.0.0.1", PLACES[:2])
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


@pytest.mark.parametrize("word", ["", ":1", "a:", "a:x", "a:1,", "a:-1"])
def test_words_that_name_no_partitions_are_refused(word: str) -> None:
    with pytest.raises(CliError) as error:
        topics_of([word])
    assert error.value.exit_code is Exit.USAGE


@pytest.mark.parametrize(
    ("words", "reset"),
    [
        (["--to-earliest"], OffsetReset.to_earliest()),
        (["--to-latest"], OffsetReset.to_latest()),
        (["--to-offset", "0"], OffsetReset.to_offset(0)),
        (["--shift-by", "-3"], OffsetReset.shift_by(-3)),
        (["--to-datetime", "@1700000000000"], OffsetReset.to_time(1_700_000_000_000)),
        (["--to-datetime", "1970-01-01T00:00:01.5Z"], OffsetReset.to_time(1_500)),
    ],
)
def test_where_a_reset_leads(words: list[str], reset: OffsetReset) -> None:
    assert reset_of(parser().parse_args(["groups", "reset-offsets", "g", "--all-topics", *words])) == reset


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
    assert members_text(GROUP).splitlines()[1].split() == ["g", "c-1", "/127.0.0.1", "client", "2", "-", "a:0,2"]
    row = state_text(GROUP).splitlines()[1].split()
    assert row == ["g", "127.0.0.1:9092", "(1)", "range", "Stable", "1", "Classic"]
    assert (assignment_text(PLACES), assignment_text(())) == ("a:0,2;b:0", "-")


def test_json_has_everything() -> None:
    fields = json.loads(json.dumps(group_fields(GROUP)))
    assert (fields["group"], fields["type"], fields["state"], fields["coordinator"]) == ("g", "Classic", "Stable", 1)
    assert [one["lag"] for one in fields["offsets"]] == [6, None, None]
    assert [one["consumer_id"] for one in fields["offsets"]] == ["c-1", "c-1", None]
    assert fields["members"][0]["assignment"] == [["a", 0], ["a", 2]]
