"""Which offsets files mean, and what is wrong with others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.cli.exits import CliError, Exit
from rayka.cli.text.offset_files import parse_plan, parse_zookeeper_export, plan_lines
from rayka.types import TopicPartition

EXPORT = """\
/consumers/billing/offsets/events/0:60
/consumers/billing/offsets/events/1:12

/consumers/audit.eu/offsets/a:b/11:0
"""


def test_an_export_from_zookeeper_is_read() -> None:
    assert parse_zookeeper_export(EXPORT.splitlines()) == {
        "billing": {TopicPartition("events", 0): 60, TopicPartition("events", 1): 12},
        "audit.eu": {TopicPartition("a:b", 11): 0},
    }


def test_version_0_7_named_the_broker_too() -> None:
    lines = ["/consumers/g/offsets/t/1-0:286894308 ", "/consumers/g/offsets/t/2-1:284803985"]
    assert parse_zookeeper_export(lines) == {
        "g": {TopicPartition("t", 0): 286894308, TopicPartition("t", 1): 284803985}
    }


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["/consumers/g/offsets/t/0:1", "/consumers/g/owners/t/0:x"], "line 2: '/consumers/g/owners"),
        (["/consumers/g/offsets/t/0:-1"], "line 1: "),
        (["/consumers/g/offsets/t/x:1"], "line 1: "),
        (["/consumers/g/offsets/t/0"], "line 1: "),
        (["/consumers/g/offsets/t/0:1", "/consumers/g/offsets/t/0:1"], "line 2: t partition 0 is there for the second"),
        (["/consumers/g/offsets/t/1-0:1", "", "/consumers/g/offsets/t/2-0:5"], "line 3: t partition 0 is there"),
        ([f"/consumers/g/offsets/t/0:{2**63}"], f"line 1: partition 0 or offset {2**63} is too large"),
        (["", " "], "the file has no offsets"),
    ],
)
def test_an_export_that_makes_no_sense_is_refused_with_the_line(lines: list[str], message: str) -> None:
    with pytest.raises(CliError) as error:
        parse_zookeeper_export(lines)
    assert error.value.message.startswith(message)
    assert error.value.exit_code is Exit.USAGE


def test_a_plan_is_read() -> None:
    lines = ["events,0,5", '"events",1,7', "", "g,events, 2 ,9"]
    assert parse_plan(lines, "g") == {TopicPartition("events", number): 5 + 2 * number for number in range(3)}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["events,0,1", "events,1"], "line 2: not of the form TOPIC,PARTITION,OFFSET"),
        (["events,0,x"], "line 1: not of the form"),
        (["events,-1,5"], "line 1: not of the form"),
        ([",0,5"], "line 1: not of the form"),
        (["other,events,0,5"], "line 1: this is about another group than g"),
        (["events,0,1", "events,0,2"], "line 2: events partition 0 is there for the second time"),
        ([], "the file has no offsets"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_the_line(lines: list[str], message: str) -> None:
    with pytest.raises(CliError) as error:
        parse_plan(lines, "g")
    assert error.value.message.startswith(message)


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)),
        st.integers(0, 2**63 - 1),
        min_size=1,
    )
)
def test_exported_offsets_are_read_again(offsets: dict[TopicPartition, int]) -> None:
    assert parse_plan([",".join(map(str, row)) for row in plan_lines(offsets)], "g") == offsets
    exported = [f"/consumers/g/offsets/{topic}/{number}:{offset}" for (topic, number), offset in offsets.items()]
    assert parse_zookeeper_export(exported) == {"g": offsets}
