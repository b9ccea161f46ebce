"""A field of a value is written in one place: records, bytes, snapshot and delta follow."""

from __future__ import annotations

import uuid
from dataclasses import MISSING, fields, replace
from typing import Any

import msgpack
import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.codec import decode, encode
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import (
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterActorRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from rayka.metadata.snapshot import snapshot_records
from rayka.metadata.validation import InvalidState, validate_image
from rayka.metadata.values import RECORDED, ActorImage, BrokerImage, PartitionImage, TopicImage

TOPIC = uuid.UUID(int=5)
BROKER = BrokerImage(1, "h", 9092, "r", True, "n", 3, ("d",), ("/a",))
ACTOR = ActorImage("a", 1, "/a", 2, True, "i", uuid.UUID(int=7))
PARTITION = PartitionImage(0, 1, 4, (1,), (1,), 6, ("a",), (uuid.UUID(int=7),))
RECORDS: list[tuple[MetadataRecord, Any]] = [
    (RegisterBrokerRecord(BROKER), BROKER),
    (RegisterActorRecord(ACTOR), ACTOR),
    (TopicRecord(TopicImage("t", TOPIC, is_internal=True)), TopicImage("t", TOPIC, is_internal=True)),
    (PartitionRecord(TOPIC, PARTITION), PARTITION),
]


@pytest.mark.parametrize(("record", "value"), RECORDS, ids=lambda each: type(each).__name__)
def test_the_bytes_of_a_record_hold_each_field_of_its_value(record: MetadataRecord, value: Any) -> None:
    held = msgpack.unpackb(encode(record))[2]
    for field in fields(value):
        name = field.metadata.get("name", field.name)
        assert (name in held) == field.metadata.get(RECORDED, True), name
        if field.default is not MISSING and field.metadata.get(RECORDED, True):
            assert getattr(value, field.name) != field.default, "this test would not notice that it is missing"
    assert decode(encode(record)) == record


@pytest.mark.parametrize("name", [field.name for field in fields(PartitionImage) if field.name != "partition"])
def test_a_change_of_any_field_of_a_partition_reaches_image_and_snapshot(name: str) -> None:
    before = MetadataImage().apply_all([record for record, _ in RECORDS])
    value: Any = {int: 9, tuple: (9,)}[type(getattr(PARTITION, name))]
    change = PartitionChangeRecord(TOPIC, 0, {name: value})
    after = before.apply(decode(encode(change)))
    assert after.topics["t"].partitions[0] == replace(PARTITION, **{name: value})
    assert MetadataImage().apply_all(snapshot_records(after)).topics == after.topics


def test_an_image_that_breaks_an_invariant_is_named_with_all_that_is_wrong() -> None:
    image = MetadataImage().apply_all([record for record, _ in RECORDS])
    online = image.apply(RegisterBrokerRecord(replace(BROKER, fenced=False)))
    validate_image(online)
    with pytest.raises(InvalidState, match="t-0: of the ISR") as caught:
        validate_image(image)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    older = online.apply(PartitionChangeRecord(TOPIC, 0, {"leader_epoch": 1, "partition_epoch": 7}))
    with pytest.raises(RaykaError, match="leader epoch 1 follows 4"):
        validate_image(older, online)
