"""The bytes of `__consumer_offsets`: those that Apache Kafka 4.4.0 wrote come out again as they were.

`kafka_records.json` has the records (key and value in hex) of a broker that served classic and consumer groups, static
members, a pattern, a migration in both directions and commits; and a share group, whose offsets were altered and, for
one topic, deleted.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path

import pytest

from rayka.coordinator.groups.record_formats import FORMATS, decode, encode
from rayka.coordinator.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.groups.state import GroupState

KAFKA_RECORDS = [
    (bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    for key, value in json.loads((Path(__file__).parent / "kafka_records.json").read_text())
]


def test_records_of_kafka_are_written_back_unchanged() -> None:
    seen: Counter[type] = Counter()
    for key, value in KAFKA_RECORDS:
        record = decode(key, value)
        assert record is not None
        assert encode(record) == (key, value)
        seen[type(record.key)] += 1
    assert set(seen) == set(FORMATS), "all types are among them"


def test_a_log_of_kafka_loads() -> None:
    state = GroupState(GroupSettings())
    for offset, (key, value) in enumerate(KAFKA_RECORDS):
        record = decode(key, value)
        assert record is not None
        state.replay(record, offset)
    groups = state.groups
    assert {group_id: group.state.value for group_id, group in groups.items()} == {
        "g-classic": "Empty",
        "g-consumer": "Empty",
        "g-mig": "Empty",
        "g-simple": "Empty",
        "g": "Empty",
    }
    share = groups["g"]
    assert isinstance(share, ShareGroup)
    assert (share.epoch, share.assignment_epoch) == (4, 4)
    assert [(topic.topic_name, sorted(topic.partitions)) for topic in share.initialized.values()] == [("t", [0, 1])]
    assert state.offsets.committed["g-simple"]["orders", 0].value.metadata.startswith("meta")


KEY = OffsetCommitKey("g", "t", 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 0000000000000007 0001 6d 0000000000000009", OffsetCommitValue(7, -1, "m", 9)),
        (
            "0001 0000000000000007 0001 6d 0000000000000009 000000000000000a",
            OffsetCommitValue(7, -1, "m", 9, expire_timestamp=10),
        ),
        ("0002 0000000000000007 0001 6d 0000000000000009", OffsetCommitValue(7, -1, "m", 9)),
        ("0003 0000000000000007 00000002 0001 6d 0000000000000009", OffsetCommitValue(7, 2, "m", 9)),
        ("0004 0000000000000007 00000002 02 6d 0000000000000009 00", OffsetCommitValue(7, 2, "m", 9)),
        (
            "0004 0000000000000007 00000002 02 6d 0000000000000009 01 00 10" + "00" * 15 + "05",
            OffsetCommitValue(7, 2, "m", 9, topic_id=uuid.UUID(int=5)),
        ),
        (
            "0004 0000000000000007 00000002 02 6d 0000000000000009 01 63 02 aabb",
            OffsetCommitValue(7, 2, "m", 9),
        ),
    ],
)
def test_all_versions_of_a_commit_are_read(value: str, expected: OffsetCommitValue) -> None:
    for key_type in ("0000", "0001"):
        record = decode(bytes.fromhex(key_type + "0001 67 0001 74 00000001"), bytes.fromhex(value))
        assert record == CoordinatorRecord(KEY, expected)


@pytest.mark.parametrize(
    ("value", "version"),
    [(OffsetCommitValue(1), 4), (OffsetCommitValue(1, expire_timestamp=5), 1)],
)
def test_a_commit_is_written_in_the_lowest_version_that_can_express_it(value: OffsetCommitValue, version: int) -> None:
    data = encode(CoordinatorRecord(KEY, value))[1]
    assert data is not None
    assert int.from_bytes(data[:2], "big") == version
    assert decode(*encode(CoordinatorRecord(KEY, value))) == CoordinatorRecord(KEY, value)


def test_old_groups_have_no_rebalance_timeout() -> None:
    old = bytes.fromhex(
        "0000 0008 636f6e73756d6572 00000003 0005 72616e6765 0001 6d"
        "00000001 0001 6d 0001 63 0001 68 00001770 00000000 00000000"
    )
    record = decode(b"\0\2\0\1g", old)
    assert record is not None
    assert isinstance(record.value, GroupMetadataValue)
    assert (record.value.members[0].rebalance_timeout, record.value.current_state_timestamp) == (-1, -1)
    state = GroupState(GroupSettings())
    state.replay(record)
    (member,) = state.groups["g"].members.values()
    assert member.rebalance_timeout_ms == 6000


def test_a_classic_member_is_distinguished_from_none() -> None:
    key = ConsumerGroupMemberMetadataKey("g", "m")
    for classic in (None, ClassicMemberMetadata(6000, (ClassicProtocol("range", b"x"),)), ClassicMemberMetadata(0, ())):
        value = ConsumerGroupMemberMetadataValue(classic_member_metadata=classic)
        expected = None if classic == ClassicMemberMetadata(0, ()) else classic
        assert decode(*encode(CoordinatorRecord(key, value))) == CoordinatorRecord(
            key, value._replace(classic_member_metadata=expected)
        )


def test_records_of_other_kinds_of_groups_are_ignored() -> None:
    assert decode(b"\0\x11\0\1g", b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0", None),
        (b"\0\2\0\5g", None),
        (b"\0\2\0\1g", b"\0\5"),
        (b"\0\2\0\1g", b"\xff\xff"),
        (b"\0\1\0\1g\0\1t\0\0\0\1", b"\0\3\0"),
        (b"\0\7\0\1g\0\1m", b"\0\0\xff\xff\xff\xff\x0f"),
        (b"\0\7\0\1g\0\1m", b"\0\0" + b"\xff" * 9),
    ],
)
def test_malformed_records_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(key, value)


def test_a_tombstone_has_no_value() -> None:
    assert encode(CoordinatorRecord(GroupMetadataKey("g"))) == (b"\0\2\0\1g", None)
    assert decode(b"\0\2\0\1g", None) == CoordinatorRecord(GroupMetadataKey("g"))
