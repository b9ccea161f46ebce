"""The options of `df.write.format("rayka")` and `writeStream`, named as those of Spark's Kafka sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayka.spark.source.options import invalid
from rayka.types import is_number

_NAMES = {
    name.lower(): name
    for name in (
        "kafka.bootstrap.servers",
        "kafka.compression.type",
        "kafka.request.timeout.ms",
        "kafka.security.protocol",
        "kafka.acks",
        "topic",
        "includeHeaders",
    )
}
_OF_SPARK = ("checkpointlocation", "path", "queryname")
"""Options that belong to the query, and that Spark gives to the sink too."""
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_TIMEOUT_MS = 60_000
TYPES: Mapping[str, Sequence[str]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
"""The columns of a DataFrame that is written, and the types that each may have."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where records go: `topic`, else each row's column of that name."""

    topic: str | None = None
    bootstrap_servers: str | None = None
    compression_type: str = "none"
    timeout_ms: int = DEFAULT_TIMEOUT_MS


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write. Raises INVALID_REQUEST and says which option is wrong."""
    given = {}
    for name, value in options.items():
        if name.lower() in _NAMES:
            given[_NAMES[name.lower()]] = value.strip()
        elif name.lower() not in _OF_SPARK:
            raise invalid(f"Option {name} is not supported: the sink rayka does not have it")
    codec = _one_of(given, "kafka.compression.type", _CODECS) or "none"
    _one_of(given, "kafka.security.protocol", ("plaintext",))
    _one_of(given, "kafka.acks", ("all", "-1"))
    timeout = given.get("kafka.request.timeout.ms", str(DEFAULT_TIMEOUT_MS))
    if not (is_number(timeout) and int(timeout)):
        raise invalid(f"Option kafka.request.timeout.ms={timeout!r} is not valid: use a number from 1")
    return SinkOptions(given.get("topic"), given.get("kafka.bootstrap.servers"), codec, int(timeout))


def require_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Raise INVALID_REQUEST unless rows with these columns (name and Spark's type) can be written."""
    for name, spark_type in columns.items():
        if name not in TYPES:
            raise invalid(f"Column {name} can't be written: a record has {', '.join(TYPES)}")
        if spark_type not in TYPES[name]:
            raise invalid(f"Column {name} has type {spark_type}; use {' or '.join(TYPES[name])}")
    if "value" not in columns:
        raise invalid("There is no column value")
    if topic is None and "topic" not in columns:
        raise invalid("Give the option topic, or a column topic")


def _one_of(given: Mapping[str, str], name: str, values: Sequence[str]) -> str | None:
    text = given.get(name)
    if text is not None and text.lower() not in values:
        raise invalid(f"Option {name}={text!r} is not valid: use {' or '.join(values)}")
    return None if text is None else text.lower()
