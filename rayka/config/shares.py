"""The settings of share groups and share coordinators: Kafka 4.4's names, types, defaults and bounds, in our words.

Source: KIP-932, KIP-1191 (dead-letter queues), and the definitions of Kafka 4.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rayka.config.definition import BOOLEAN, CLUSTER_WIDE, INT, LIST, SHORT, STRING, ConfigDef, ConfigType, ConfigValue
from rayka.config.definition import int_config as _int

BY_DURATION = "by_duration:"
MAX_RETRY_DELAY_MS = 86_400_000
"""No record waits longer than a day for its next delivery: its log may not keep it for much longer."""
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{0,9})?)S)?)?",
    re.IGNORECASE,
)
_UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


def duration_ms(text: str) -> int:
    """The milliseconds of an ISO 8601 duration of days and smaller units. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    parts = {} if found is None else {unit: value for unit, value in found.groupdict().items() if value}
    if not parts:
        raise ValueError(f"{text!r} is not a duration of the form PnDTnHnMn.nS")
    return int(sum(float(value) * _UNIT_MS[unit] for unit, value in parts.items()))


def _known_reset(value: ConfigValue) -> str | None:
    text = str(value).lower()
    if text in ("earliest", "latest"):
        return None
    if text.startswith(BY_DURATION):
        try:
            duration_ms(text.removeprefix(BY_DURATION))
        except ValueError:
            return "Invalid duration, use ISO8601 (PnDTnHnMn.nS), and not a negative one"
        return None
    return "Valid strategies are: latest, earliest or by_duration:PnDTnHnMn.nS"


_MEMBERSHIP = (
    _int("group.share.session.timeout.ms", 45000, "A member without a heartbeat for so long is removed."),
    _int("group.share.min.session.timeout.ms", 45000, "The least that share.session.timeout.ms may be."),
    _int("group.share.max.session.timeout.ms", 60000, "The most that share.session.timeout.ms may be."),
    _int("group.share.heartbeat.interval.ms", 5000, "How often the members of a share group send heartbeats."),
    _int("group.share.min.heartbeat.interval.ms", 5000, "The least that share.heartbeat.interval.ms may be."),
    _int("group.share.max.heartbeat.interval.ms", 15000, "The most that share.heartbeat.interval.ms may be."),
    _int("group.share.max.size", 200, "The most members that a share group takes.", 1, 1000),
    ConfigDef(
        "group.share.assignors",
        LIST,
        "simple",
        "The assignors of share groups. There is one, simple: each partition has as many members as are needed for all "
        "of them to have work.",
        valid_values=("simple",),
    ),
    ConfigDef(
        "group.share.assignment.interval.ms",
        INT,
        "1000",
        "The least time between two target assignments of a share group.",
        lower=0,
        update_mode=CLUSTER_WIDE,
    ),
    _int("group.share.min.assignment.interval.ms", 0, "The least that share.assignment.interval.ms may be.", 0),
    _int("group.share.max.assignment.interval.ms", 15000, "The most that share.assignment.interval.ms may be.", 0),
    _int(
        "group.share.unsettled.heartbeat.interval.ms",
        500,
        "rayka's own: the heartbeat interval that share consumers get while their group changes, if it is shorter "
        "than theirs, so that they learn of the next step soon.",
    ),
    _int(
        "group.share.initialize.retry.interval.ms",
        30000,
        "How long the group coordinator waits for the initialization of a share-partition before it is tried again.",
        importance="low",
    ),
)
_DELIVERY = (
    _int("group.share.delivery.count.limit", 5, "How often a record is delivered before it is archived.", 2, 10),
    _int("group.share.min.delivery.count.limit", 2, "The least that share.delivery.count.limit may be.", 2, 5),
    _int("group.share.max.delivery.count.limit", 10, "The most that share.delivery.count.limit may be.", 5, 25),
    _int(
        "group.share.record.lock.duration.ms",
        30000,
        "How long a record that was delivered is locked for its consumer.",
        1000,
        3_600_000,
    ),
    _int(
        "group.share.min.record.lock.duration.ms",
        15000,
        "The least that share.record.lock.duration.ms may be.",
        1000,
        30000,
    ),
    _int(
        "group.share.max.record.lock.duration.ms",
        60000,
        "The most that share.record.lock.duration.ms may be.",
        30000,
        3_600_000,
    ),
    _int(
        "group.share.partition.max.record.locks",
        2000,
        "The most records of a share-partition that are locked or waiting to be acknowledged at a time.",
        100,
        10000,
    ),
    _int(
        "group.share.min.partition.max.record.locks",
        100,
        "The least that share.partition.max.record.locks may be.",
        100,
        2000,
    ),
    _int(
        "group.share.max.partition.max.record.locks",
        4000,
        "The most that share.partition.max.record.locks may be.",
        2000,
        10000,
    ),
    _int("group.share.max.share.sessions", 2000, "The most share sessions that a broker keeps."),
    _int(
        "share.fetch.purgatory.purge.interval.requests",
        1000,
        "After how many requests Kafka looks for share fetches that have ended.",
        None,
    ),
    ConfigDef(
        "errors.deadletterqueue.auto.create.topics.enable",
        BOOLEAN,
        "false",
        "Whether the dead-letter topic of a share group is created when it does not exist (KIP-1191).",
        update_mode=CLUSTER_WIDE,
    ),
    ConfigDef(
        "errors.deadletterqueue.topic.name.prefix",
        STRING,
        "dlq.",
        "The prefix that names of dead-letter topics must have; empty for none (KIP-1191).",
        update_mode=CLUSTER_WIDE,
    ),
)
SHARE_GROUP_BROKER_CONFIGS: Mapping[str, ConfigDef] = {config.name: config for config in (*_MEMBERSHIP, *_DELIVERY)}

SHARE_COORDINATOR_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config
    for config in (
        _int(
            "share.coordinator.state.topic.num.partitions",
            50,
            "Partitions of __share_group_state when it is created.",
            importance="high",
        ),
        ConfigDef(
            "share.coordinator.state.topic.replication.factor",
            SHORT,
            "3",
            "Replicas of __share_group_state when it is created; fewer if there are fewer brokers.",
            lower=1,
            importance="high",
        ),
        ConfigDef(
            "share.coordinator.state.topic.min.isr",
            SHORT,
            "2",
            "min.insync.replicas of __share_group_state when it is created; no more than it has replicas.",
            lower=1,
            importance="high",
        ),
        _int(
            "share.coordinator.state.topic.segment.bytes",
            104857600,
            "Segment size of __share_group_state, in bytes.",
            importance="high",
        ),
        _int(
            "share.coordinator.state.topic.compression.codec",
            0,
            "The codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd).",
            None,
            importance="high",
        ),
        _int(
            "share.coordinator.snapshot.update.records.per.snapshot",
            500,
            "How many updates of a share-partition are written before the next snapshot of its whole state.",
            0,
            500,
        ),
        _int(
            "share.coordinator.cold.partition.snapshot.interval.ms",
            300000,
            "After this long a snapshot is written again, so that older records of the state topic can be deleted.",
            importance="low",
        ),
        _int(
            "share.coordinator.state.topic.prune.interval.ms",
            300000,
            "How often records of the state topic that are no longer needed are deleted.",
            importance="low",
        ),
        _int(
            "share.coordinator.write.timeout.ms",
            5000,
            "How long a write of the share coordinator may wait for its replicas.",
            importance="high",
        ),
        _int(
            "share.coordinator.load.buffer.size",
            5242880,
            "Bytes read at once when a coordinator loads its log.",
            importance="high",
        ),
        _int("share.coordinator.threads", 1, "Threads for requests."),
        _int("share.coordinator.append.linger.ms", -1, "How long a coordinator gathers writes.", -1),
        ConfigDef(
            "share.coordinator.cached.buffer.max.bytes",
            INT,
            "1048588",
            "The largest buffer kept.",
            lower=524288,
            update_mode=CLUSTER_WIDE,
        ),
    )
}


def _of_group(
    name: str, kind: ConfigType, default: str, doc: str, lower: int | None = None, upper: int | None = None
) -> ConfigDef:
    return ConfigDef(name, kind, default, doc, lower=lower, upper=upper, update_mode=CLUSTER_WIDE)


SHARE_GROUP_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config
    for config in (
        _of_group("share.session.timeout.ms", INT, "45000", "A member without a heartbeat for so long is removed.", 1),
        _of_group("share.heartbeat.interval.ms", INT, "5000", "How often members send heartbeats.", 1),
        _of_group("share.assignment.interval.ms", INT, "1000", "The least time between two target assignments.", 0),
        _of_group("share.record.lock.duration.ms", INT, "30000", "How long a delivered record is locked.", 1000),
        _of_group("share.delivery.count.limit", INT, "5", "How often a record is delivered before it is archived.", 2),
        _of_group("share.partition.max.record.locks", INT, "2000", "The most records that are locked at a time.", 100),
        ConfigDef(
            "share.auto.offset.reset",
            STRING,
            "latest",
            "Where the group starts to read a partition: earliest, latest, or by_duration: with an ISO 8601 duration.",
            check=_known_reset,
            update_mode=CLUSTER_WIDE,
        ),
        ConfigDef(
            "share.isolation.level",
            STRING,
            "read_uncommitted",
            "With read_committed records of aborted transactions are left out.",
            valid_values=("read_committed", "read_uncommitted"),
            update_mode=CLUSTER_WIDE,
        ),
        _of_group(
            "share.retry.backoff.ms",
            INT,
            "0",
            "rayka's own: how long a record waits for its next delivery after it was released the first time. The wait "
            "doubles with every delivery. With 0 released records are delivered again at once, as in Kafka.",
            0,
            MAX_RETRY_DELAY_MS,
        ),
        _of_group(
            "share.retry.backoff.max.ms",
            INT,
            "0",
            "rayka's own: the longest wait to which share.retry.backoff.ms doubles; 0 means a day.",
            0,
            MAX_RETRY_DELAY_MS,
        ),
        _of_group("share.renew.acknowledge.enable", BOOLEAN, "true", "Whether consumers may renew their locks."),
        _of_group(
            "errors.deadletterqueue.topic.name",
            STRING,
            "",
            "The topic that takes records which are rejected or were delivered too often; empty for none.",
        ),
        _of_group(
            "errors.deadletterqueue.copy.record.enable",
            BOOLEAN,
            "false",
            "Whether the key and value of a record are copied to the dead-letter topic.",
        ),
    )
}
"""The configs of a share group (KIP-932)."""
