"""The records of `__transaction_state`, as Kafka has them.

The key is an int16, 0, and the transactional id. The value is an int16 version and the fields, or nothing: a tombstone
ends the id. Versions 0 and 1 are read, 1 is written. Tag 3, an epoch that Kafka 4.4 reserves for KIP-939, is skipped.

Source: the message definitions of Kafka 4.4's transaction-coordinator module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from rayka.coordinator.codec import INT8, INT16, INT32, INT64, STRING, VERSION, Array, ByteReader, Field, Schema
from rayka.coordinator.transactions.metadata import TransactionMetadata
from rayka.coordinator.transactions.state import EMPTY, TransactionState
from rayka.types import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

_KEY_TYPE = 0
_WRITTEN_VERSION = 1
_FIRST_FLEXIBLE = 1


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A transactional id and what it is now; None ends it."""

    transactional_id: str
    metadata: TransactionMetadata | None


class _Key(NamedTuple):
    transactional_id: str


class _Partitions(NamedTuple):
    topic: str
    partition_ids: tuple[int, ...]


class _Value(NamedTuple):
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: int
    partitions: tuple[_Partitions, ...] | None
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0


_KEY = Schema(_Key, Field("transactional_id", STRING))
_VALUE = Schema(
    _Value,
    Field("producer_id", INT64),
    Field("previous_producer_id", INT64, since=1, tag=0, default=NO_PRODUCER_ID),
    Field("next_producer_id", INT64, since=1, tag=1, default=NO_PRODUCER_ID),
    Field("producer_epoch", INT16),
    Field("timeout_ms", INT32),
    Field("status", INT8),
    Field("partitions", Array(Schema(_Partitions, Field("topic", STRING), Field("partition_ids", Array(INT32))))),
    Field("last_update_ms", INT64),
    Field("start_ms", INT64),
    Field("client_transaction_version", INT16, since=1, tag=2, default=0),
)


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The key and value bytes of a record; the value of a tombstone is None."""
    key = bytearray(VERSION.pack(_KEY_TYPE))
    _KEY.write(key, _Key(record.transactional_id), 0, flexible=False)
    if record.metadata is None:
        return bytes(key), None
    value = bytearray(VERSION.pack(_WRITTEN_VERSION))
    _VALUE.write(value, _value(record.metadata), _WRITTEN_VERSION, flexible=True)
    return bytes(key), bytes(value)


def _value(metadata: TransactionMetadata) -> _Value:
    return _Value(
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.timeout_ms,
        metadata.state.value,
        None if metadata.state is EMPTY else tuple(_by_topic(metadata.partitions)),
        metadata.last_update_ms,
        metadata.start_ms,
        metadata.previous_producer_id,
        metadata.next_producer_id,
        metadata.client_transaction_version,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[_Partitions]:
    for topic, group in groupby(sorted(partitions), lambda partition: partition.topic):
        yield _Partitions(topic, tuple(partition.partition for partition in group))


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The record of these bytes; None for a key of another type.

    Raises ValueError for bytes that are not such a record, or of a version from the future.
    """
    reader = ByteReader(key)
    if reader.unpack(VERSION) != _KEY_TYPE:
        return None
    transactional_id = _KEY.read(reader, 0, flexible=False).transactional_id
    return TransactionRecord(transactional_id, None if value is None else _metadata(_read_value(value)))


def _read_value(data: bytes) -> _Value:
    reader = ByteReader(data)
    version = reader.unpack(VERSION)
    if not 0 <= version <= _WRITTEN_VERSION:
        raise ValueError(f"version {version} of a transaction record is not known; the highest is {_WRITTEN_VERSION}")
    return _VALUE.read(reader, version, flexible=version >= _FIRST_FLEXIBLE)


def _metadata(value: _Value) -> TransactionMetadata:
    partitions: Any = value.partitions or ()
    return TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.timeout_ms,
        last_update_ms=value.last_update_ms,
        state=TransactionState(value.status),
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        partitions=frozenset(
            TopicPartition(each.topic, number) for each in partitions for number in each.partition_ids
        ),
        start_ms=value.start_ms,
        client_transaction_version=value.client_transaction_version,
    )
