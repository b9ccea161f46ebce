"""Records as text and back: JSON lines, formats with kcat's letters, times as people write them.

A JSON line holds topic, partition, offset, timestamp (milliseconds), key, value and headers (pairs, because
a name may come twice). Bytes that are UTF-8 are strings; others are `{"base64": "..."}`. What
`rayka consume --json` writes, `rayka produce --json` takes, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from rayka.cli.exits import CliError, Exit

Headers = Sequence[tuple[str, bytes | None]]

_TOKEN = re.compile(r"%([%sSkKtpoTh])|\\([nrt0\\]|x[0-9a-fA-F]{2})")
_NAMES = ("key", "value", "headers", "partition", "timestamp", "topic", "offset")
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


class Readable(Protocol):
    """What a consumed record must tell."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Outgoing(NamedTuple):
    """A record to produce; `partition` and `timestamp` (milliseconds) are None where the producer decides."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


def text_of(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as they stand in JSON."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_of(text: object, what: str) -> bytes | None:
    """The way back. Numbers, booleans, lists and objects become their JSON. Raises CliError."""
    if text is None:
        return None
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    if isinstance(text, dict) and text.keys() == {"base64"}:
        try:
            return base64.b64decode(text["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise CliError(f"{what} is not base64") from None
    return json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode()


def to_json(record: Readable) -> bytes:
    """The record as one JSON line."""
    line = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[name, text_of(value)] for name, value in record.headers],
    }
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def from_json(line: bytes, number: int) -> Outgoing:
    """A JSON line as a record to produce: key, value, headers, partition, timestamp; topic and offset are ignored.

    Raises CliError naming the line. A misspelt name is an error: without it the record would have no value.
    """
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise CliError(f"line {number} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CliError(f"line {number} is not a JSON object")
    if unknown := fields.keys() - _NAMES:
        raise CliError(f"line {number} has the unknown name {min(unknown)!r}; known are {', '.join(_NAMES)}")
    return Outgoing(
        bytes_of(fields.get("key"), f"the key on line {number}"),
        bytes_of(fields.get("value"), f"the value on line {number}"),
        _headers_of(fields.get("headers") or (), number),
        _integer(fields.get("partition"), f"the partition on line {number}"),
        _integer(fields.get("timestamp"), f"the timestamp on line {number}"),
    )


def _headers_of(headers: object, number: int) -> Headers:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    try:
        return [(str(name), bytes_of(value, f"header {name} on line {number}")) for name, value in pairs]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise CliError(f"headers on line {number} are neither an object nor pairs") from None


def _integer(value: object, what: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise CliError(f"{what} is not a whole number")


def formatter(pattern: str) -> Callable[[Readable], bytes]:
    r"""What `--format` means, with kcat's letters.

    %s value, %S its length, %k key, %K its length, %t topic, %p partition, %o offset, %T timestamp in
    milliseconds, %h headers as name=value with commas, %% a percent sign; \n \t \r \0 \\ \xHH. A null value
    or key is empty and has length -1. Raises CliError(USAGE) for a letter that means nothing.
    """
    parts: list[bytes | Callable[[Readable], bytes]] = []
    position = 0
    for match in _TOKEN.finditer(pattern):
        _add_text(parts, pattern[position : match.start()])
        parts.append(_FIELDS[match[1]] if match[1] else _escape(match[2]))
        position = match.end()
    _add_text(parts, pattern[position:])
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _add_text(parts: list[bytes | Callable[[Readable], bytes]], text: str) -> None:
    if "%" in text:
        raise CliError(f"--format: unknown %{text.partition('%')[2][:1]}; see `rayka consume --help`", Exit.USAGE)
    parts.append(text.encode("utf-8", "surrogateescape"))


def _escape(code: str) -> bytes:
    return bytes([int(code[1:], 16)]) if code[0] == "x" else _ESCAPES[code]


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _header_text(record: Readable) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (b"" if value is None else value)
        for name, value in record.headers
    )


_FIELDS: Mapping[str, bytes | Callable[[Readable], bytes]] = {
    "%": b"%",
    "s": lambda record: record.value or b"",
    "S": lambda record: _length(record.value),
    "k": lambda record: record.key or b"",
    "K": lambda record: _length(record.key),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "h": _header_text,
}


def parse_time(text: str) -> int:
    """Milliseconds since the epoch from `@MS` or ISO 8601 (local time if it names no zone). Raises CliError."""
    try:
        if text.startswith("@"):
            return int(text[1:])
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        raise CliError(f"{text!r} is neither a time such as 2026-01-31T18:00 nor @MILLISECONDS", Exit.USAGE) from None


def time_text(timestamp: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC; `-` for none."""
    if timestamp < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp % 1000:03d}Z"


def parse_pairs(assignments: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` headers of the command line, as bytes."""
    pairs: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name:
            raise CliError(f"--header {assignment!r} has no name", Exit.USAGE)
        pairs[name] = value.encode("utf-8", "surrogateescape") if equals else None
    return pairs
