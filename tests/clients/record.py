"""Records as every client sees them, and the small set that must survive any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record; `timestamp` in ms, None when the client is to choose; `offset` is -1 before it is written."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    offset: int = -1

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.key, self.value, self.headers


class Refused(Exception):
    """The broker answered with an error; `code` is Kafka's number for it."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Client(Protocol):
    """What each client library is asked to do, always on an assigned partition and never in a group."""

    name: str

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1
    ) -> list[int]:
        """Writes in order and returns the acknowledged offsets (empty with acks=0). Raises Refused."""

    def fetch(self, topic: str, *, partition: int = 0, offset: int = 0, count: int) -> list[Record]:
        """Reads `count` records from `offset` on. Raises Refused, or AssertionError when they do not come."""

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The earliest and the latest offset."""

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        """The first offset whose timestamp is at least `timestamp`, None when there is none."""


class Admin(Protocol):
    """Administration, as far as the client library has it."""

    name: str

    def create_topic(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def topics(self) -> set[str]: ...
    def partition_count(self, topic: str) -> int: ...
    def create_partitions(self, topic: str, total: int) -> None: ...
    def topic_configs(self, topic: str) -> dict[str, str]: ...
    def alter_topic_configs(self, topic: str, configs: dict[str, str]) -> None: ...
    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None: ...


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

SAMPLES = (
    Record(b"key", b"value"),
    Record(None, b"no key"),
    Record(b"tombstone", None),
    Record(None, None),
    Record(b"empty value", b""),
    Record("ключ".encode(), "значение €".encode()),
    Record(b"headers", b"several", (("trace", b"1"), ("trace", b"2"), ("name", "имя".encode()))),
    Record(b"odd headers", b"v", (("null", None), ("empty", b""))),
    Record(None, None, (("only", b"headers"),)),
    Record(b"long", b"0123456789abcdef" * 600),
)
