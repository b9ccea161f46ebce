"""kcat: librdkafka of 2023, as a command line."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from tests.clients import tools
from tests.clients.record import Headers, Record, Refused

TIMEOUT_S = 120.0
KEY_DELIMITER = "\\x1f"
# lengths first, so that keys and values may hold any bytes; a length of -1 is a null
OUTPUT = "%o %T %K %S %h\\x1e%k%s"
ERROR_CODES = {"Message size too large": 10, "Unknown topic or partition": 3, "Offset out of range": 1}


def refused(text: str) -> Refused:
    code = next((code for phrase, code in ERROR_CODES.items() if phrase in text), None)
    return Refused(code, text)


def header_arguments(headers: Headers) -> list[str]:
    arguments: list[str] = []
    for name, value in headers:
        arguments += ["-H", name if value is None else f"{name}={value.decode()}"]
    return arguments


def parse_headers(text: str) -> Headers:
    parts = (part.partition("=") for part in text.split(",") if part)
    return tuple((name, None if value == "NULL" else value.encode()) for name, _, value in parts)


def parse_records(data: bytes) -> Iterator[Record]:
    """The records of an output in the form of `OUTPUT`."""
    position = 0
    while position < len(data):
        end = data.index(b"\x1e", position)
        place, timestamp, key_length, value_length, headers = data[position:end].decode().split(" ", 4)
        value_at = end + 1 + max(int(key_length), 0)
        position = value_at + max(int(value_length), 0)
        key = None if int(key_length) < 0 else data[end + 1 : value_at]
        value = None if int(value_length) < 0 else data[value_at:position]
        yield Record(key, value, parse_headers(headers), int(timestamp), int(place))


class Kcat:
    name = "kcat"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.program = tools.kcat()

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = [self.program, "-b", self.bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise refused(done.stderr.decode())
        return done.stdout

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: int = -1,
        **settings: Any,
    ) -> list[int]:
        """One run for each stretch of equal headers, as kcat gives all records of a run the same; no offsets come."""
        common = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-X", f"acks={acks}", "-K", KEY_DELIMITER]
        common += ["-X", "message.max.bytes=20000000", "-X", "delivery.timeout.ms=120000", "-D", "\\x1e"]
        for name, value in settings.items():
            common += ["-X", f"{name}={value}"]

        def run_of(record: Record) -> tuple[Headers, bool]:
            return record.headers, record.value is None

        for (headers, null), group in groupby(records, run_of):
            lines = [
                (b"" if record.key is None and not null else (record.key or b"") + b"\x1f") + (record.value or b"")
                for record in group
            ]
            self.run(*common, *header_arguments(headers), *(["-Z"] if null else []), stdin=b"\x1e".join(lines))
        return []

    def fetch(self, topic: str, *, partition: int = 0, offset: int = 0, count: int) -> list[Record]:
        data = self.run(
            "-C", "-q", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-f", OUTPUT
        )  # fmt: skip
        records = list(parse_records(data))
        assert len(records) == count, f"{len(records)} of {count} records came"
        return records

    def query(self, topic: str, timestamp: int, partition: int) -> int:
        answer = self.run("-Q", "-t", f"{topic}:{partition}:{timestamp}").decode()
        found = re.search(r"offset (-?\d+)", answer)
        assert found, answer
        return int(found.group(1))

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        return self.query(topic, -2, partition), self.query(topic, -1, partition)

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        found = self.query(topic, timestamp, partition)
        return None if found == -1 else found
