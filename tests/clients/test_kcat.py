"""kcat at the command line, as in its manual."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.clients.adapters.kcat import Kcat


def test_lists_the_metadata(kcat: Kcat, new_topic: Callable[..., str], bootstrap: str, broker_id: int) -> None:
    topic = new_topic(3)

    metadata = json.loads(kcat.run("-L", "-J", "-t", topic))

    assert metadata["brokers"] == [{"id": broker_id, "name": bootstrap}]
    (listed,) = metadata["topics"]
    partition = {"leader": broker_id, "replicas": [{"id": broker_id}], "isrs": [{"id": broker_id}]}
    assert listed == {"topic": topic, "partitions": [{"partition": number, **partition} for number in range(3)]}


def test_sends_files_and_prints_json(kcat: Kcat, topic: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("first\nline")
    (tmp_path / "two").write_text("second")
    kcat.run("-P", "-t", topic, "-k", "key", "-H", "from=file", str(tmp_path / "one"), str(tmp_path / "two"))

    lines = kcat.run("-C", "-q", "-e", "-J", "-t", topic, "-p", "0", "-o", "beginning").splitlines()

    got = [json.loads(line) for line in lines]
    assert [record["payload"] for record in got] == ["first\nline", "second"]
    assert {(record["key"], tuple(record["headers"]), record["tstype"]) for record in got} == {
        ("key", ("from", "file"), "create")
    }


def test_sends_lines_and_asks_for_the_end_offset(kcat: Kcat, topic: str) -> None:
    lines = [b"value %d" % number for number in range(300)]

    kcat.run("-P", "-t", topic, "-p", "0", stdin=b"\n".join(lines) + b"\n")

    assert kcat.run("-C", "-q", "-e", "-t", topic, "-p", "0", "-o", "beginning").splitlines() == lines
    assert kcat.run("-Q", "-t", f"{topic}:0:-1") == b"%s [0] offset 300\n" % topic.encode()


def test_reads_the_last_records(kcat: Kcat, topic: str) -> None:
    kcat.run("-P", "-t", topic, stdin=b"\n".join(b"%d" % number for number in range(10)))

    assert kcat.run("-C", "-q", "-e", "-t", topic, "-p", "0", "-o", "-3") == b"7\n8\n9\n"


def test_reads_between_two_times(kcat: Kcat, topic: str) -> None:
    kcat.run("-P", "-t", topic, stdin=b"only")
    (line,) = kcat.run("-C", "-q", "-e", "-J", "-t", topic, "-o", "beginning").splitlines()
    written_ms = json.loads(line)["ts"]

    def between(first_ms: int, last_ms: int) -> bytes:
        return kcat.run("-C", "-q", "-e", "-t", topic, "-p", "0", "-o", f"s@{first_ms}", "-o", f"e@{last_ms}")

    assert between(written_ms, written_ms + 1) == b"only\n"
    assert between(written_ms - 1000, written_ms) == b""
