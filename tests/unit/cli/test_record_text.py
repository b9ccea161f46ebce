"""Records as text and back."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.cli.exits import CliError, Exit
from rayka.cli.text.record_text import Headers, formatter, from_json, parse_pairs, parse_time, time_text, to_json


class Read(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


optional_bytes = st.none() | st.binary(max_size=20)


@given(optional_bytes, optional_bytes, st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3))
def test_produce_reads_the_output_of_consume(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    line = to_json(Read("t", 3, 9, 1_700_000_000_123, key, value, headers))
    assert line.count(b"\n") == 1
    assert from_json(line, 1) == (key, value, headers, 3, 1_700_000_000_123)


def test_json_values_that_are_not_strings_become_their_json() -> None:
    record = from_json('{"key": 7, "value": {"a": [1, "ü"]}, "headers": {"h": "x"}}'.encode(), 1)
    assert (record.key, record.value) == (b"7", '{"a":[1,"ü"]}'.encode())
    assert list(record.headers) == [("h", b"x")]
    assert (record.partition, record.timestamp) == (None, None)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '"text"',
        '{"partition": "1"}',
        '{"timestamp": true}',
        '{"value": {"base64": "?"}}',
        '{"headers": 5}',
        '{"headers": [["a"]]}',
        '{"vaule": "a misspelt name, which would make a record without a value"}',
    ],
)
def test_lines_that_are_not_records_are_named(line: str) -> None:
    with pytest.raises(CliError, match="line 12"):
        from_json(line.encode(), 12)


def test_format_letters() -> None:
    record = Read("t", 3, 9, 17, b"key", b"value", [("a", b"1"), ("b", None)])
    assert formatter(r"%t[%p]@%o %T %k(%K)=%s(%S) %h 100%%\n\x41\\")(record) == (
        b"t[3]@9 17 key(3)=value(5) a=1,b= 100%\nA\\"
    )
    assert formatter("%k|%K|%s|%S")(record._replace(key=None, value=None)) == b"|-1||-1"
    with pytest.raises(CliError) as error:
        formatter("%x")
    assert error.value.exit_code is Exit.USAGE


def test_times() -> None:
    assert parse_time("@1700000000123") == 1_700_000_000_123
    assert parse_time("2023-11-14T22:13:20.123Z") == 1_700_000_000_123
    assert parse_time("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert (time_text(-1), time_text(1 << 62)) == ("-", str(1 << 62))
    for wrong in ("yesterday", "@soon", ""):
        with pytest.raises(CliError):
            parse_time(wrong)


def test_header_arguments() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c"]) == {"a": b"1", "b": b"x=y", "c": None}
    with pytest.raises(CliError):
        parse_pairs(["=1"])


def test_bytes_that_are_not_text_are_marked() -> None:
    assert json.loads(to_json(Read("t", 0, 0, 0, None, b"\xff")))["value"] == {"base64": "/w=="}
