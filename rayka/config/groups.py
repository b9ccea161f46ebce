"""The settings of group coordinators: Kafka 4.4's names, types, defaults and bounds, in our words.

`GROUP_COORDINATOR_CONFIGS` are broker settings. `GROUP_CONFIGS` are set for one group (config resource type 32), each
within the bounds that two broker settings give; `checked_group_config` holds them to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rayka.config.definition import CLUSTER_WIDE, INT, INT_MAX, LIST, LONG, SHORT, STRING, ConfigDef, ConfigValue
from rayka.config.definition import int_config as _int
from rayka.config.shares import SHARE_GROUP_BROKER_CONFIGS, SHARE_GROUP_CONFIGS
from rayka.errors import ErrorCode, RaykaError

_high = partial(_int, importance="high")
MIGRATION_POLICIES = ("disabled", "downgrade", "upgrade", "bidirectional")


def _known_policy(value: ConfigValue) -> str | None:
    known = isinstance(value, str) and value.lower() in MIGRATION_POLICIES
    return None if known else f"String must be one of (case insensitive): {', '.join(MIGRATION_POLICIES).upper()}"


_CLASSIC = (
    _int("group.min.session.timeout.ms", 6000, "The shortest session timeout that a classic member may ask for.", None),
    _int("group.max.session.timeout.ms", 1800000, "The longest session timeout a classic member may ask for.", None),
    _int(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long a new classic group waits for more members before its first rebalance.",
        None,
    ),
    _int(
        "group.initial.rebalance.quiet.ms",
        50,
        "rayka's own: the first rebalance of a new classic group goes on only when no further member has come for so "
        "long: members that start together are one generation even where group.initial.rebalance.delay.ms is 0.",
        0,
    ),
    _int("group.max.size", INT_MAX, "The most members that a classic group takes."),
)
_CONSUMER = (
    _int("group.consumer.session.timeout.ms", 45000, "A consumer without a heartbeat for so long is removed."),
    _int("group.consumer.min.session.timeout.ms", 45000, "The least that consumer.session.timeout.ms may be."),
    _int("group.consumer.max.session.timeout.ms", 60000, "The most that consumer.session.timeout.ms may be."),
    _int("group.consumer.heartbeat.interval.ms", 5000, "How often the members of a consumer group send heartbeats."),
    _int("group.consumer.min.heartbeat.interval.ms", 5000, "The least that consumer.heartbeat.interval.ms may be."),
    _int("group.consumer.max.heartbeat.interval.ms", 15000, "The most that consumer.heartbeat.interval.ms may be."),
    _int("group.consumer.max.size", INT_MAX, "The most members that a consumer group takes."),
    ConfigDef(
        "group.consumer.assignment.interval.ms",
        INT,
        "1000",
        "The least time between two target assignments of a group.",
        lower=0,
        importance="medium",
        update_mode=CLUSTER_WIDE,
    ),
    _int("group.consumer.min.assignment.interval.ms", 0, "The least that consumer.assignment.interval.ms may be.", 0),
    _int("group.consumer.max.assignment.interval.ms", 15000, "The most consumer.assignment.interval.ms may be.", 0),
    _int(
        "group.consumer.regex.refresh.interval.ms",
        600000,
        "How often the topics that match the regular expressions of a group are looked up again.",
        10000,
    ),
    _int(
        "group.consumer.unsettled.heartbeat.interval.ms",
        500,
        "rayka's own: the heartbeat interval that members get while their group changes, if it is shorter than "
        "theirs, so that they learn of the next step soon.",
    ),
    ConfigDef(
        "group.consumer.assignors",
        LIST,
        "uniform,range",
        "The assignors that consumer groups can use; the first is the default.",
        valid_values=("uniform", "range"),
    ),
    ConfigDef(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "How a group may change its protocol while it has members: upgrade (classic to "
        "consumer), downgrade, bidirectional or disabled.",
        check=_known_policy,
    ),
)
_OFFSETS = (
    _high("offset.metadata.max.bytes", 4096, "The longest metadata that a committed offset may have.", None),
    _high("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets when it is created.", 1),
    ConfigDef(
        "offsets.topic.replication.factor",
        SHORT,
        "3",
        "Replicas of __consumer_offsets when it is created; fewer if there are fewer brokers.",
        lower=1,
        importance="high",
    ),
    _high("offsets.topic.segment.bytes", 104857600, "Segment size of __consumer_offsets, in bytes.", 1),
    _high("offsets.topic.compression.codec", 0, "The codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd).", None),
    _high(
        "offsets.retention.minutes",
        10080,
        "How long offsets are kept: after a group has become empty; or, for a topic that nobody in the group reads and "
        "for consumers without a group, after the commit.",
        1,
    ),
    ConfigDef(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "How often offsets are checked against their retention.",
        lower=1,
        importance="high",
    ),
    _high("offsets.commit.timeout.ms", 5000, "How long a coordinator's write may wait for its replicas.", 1),
    _high("offsets.load.buffer.size", 5242880, "Bytes read at once when a coordinator loads its log.", 1),
)
_COORDINATOR = (
    ConfigDef(
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer,streams",
        "The rebalance protocols that groups may use. rayka serves all but streams; only consumer can be left out.",
        valid_values=("consumer", "classic", "share", "streams"),
    ),
    _int("group.coordinator.append.linger.ms", -1, "How long a coordinator gathers writes.", -1),
    _high("group.coordinator.threads", 4, "Threads for requests.", 1),
    _high("group.coordinator.background.threads", 2, "Threads for background work.", 1),
    ConfigDef(
        "group.coordinator.cached.buffer.max.bytes",
        INT,
        "1048588",
        "The largest buffer kept.",
        lower=524288,
        update_mode=CLUSTER_WIDE,
    ),
)

GROUP_COORDINATOR_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config for config in (*_CLASSIC, *_CONSUMER, *_OFFSETS, *_COORDINATOR)
}


def _group_int(name: str, default: int, doc: str, lower: int) -> ConfigDef:
    return ConfigDef(name, INT, str(default), doc, lower=lower, update_mode=CLUSTER_WIDE)


GROUP_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config
    for config in (
        _group_int("consumer.session.timeout.ms", 45000, "A member without a heartbeat for so long is removed.", 1),
        _group_int("consumer.heartbeat.interval.ms", 5000, "How often members send heartbeats.", 1),
        _group_int("consumer.assignment.interval.ms", 1000, "The least time between two target assignments.", 0),
        *SHARE_GROUP_CONFIGS.values(),
    )
}
_BOUND_SETTINGS: Mapping[str, ConfigDef] = {**GROUP_COORDINATOR_CONFIGS, **SHARE_GROUP_BROKER_CONFIGS}


def broker_synonym(name: str) -> str | None:
    """The broker setting that a group config takes its default from; None if it has none."""
    return f"group.{name}" if f"group.{name}" in _BOUND_SETTINGS else None


def group_defaults(broker: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """What holds for a group that has no configs of its own: the broker's settings, else the config's default."""
    synonyms = {name: broker_synonym(name) for name in GROUP_CONFIGS}
    return {
        name: GROUP_CONFIGS[name].default_value if synonym is None else broker[synonym]
        for name, synonym in synonyms.items()
    }


def bounds(name: str, broker: Mapping[str, ConfigValue]) -> tuple[int, int]:
    """The least and the most that the broker allows a group config with a broker setting to be."""
    protocol, rest = name.split(".", 1)
    values = []
    for bound in ("min", "max"):
        setting = f"group.{protocol}.{bound}.{rest}"
        value = broker.get(setting, _BOUND_SETTINGS[setting].default_value)
        assert isinstance(value, int)
        values.append(value)
    return values[0], values[1]


def checked_group_config(name: str, text: str, broker: Mapping[str, ConfigValue]) -> ConfigValue:
    """The value of one group's config. Raises INVALID_CONFIG with the reason if it is unknown or out of bounds."""
    config = GROUP_CONFIGS.get(name)
    if config is None:
        unknown = ConfigDef(name, STRING, None, "")
        raise unknown.invalid(text, "Unknown group config name")
    value = config.parse(text)
    if broker_synonym(name) is None:
        return value
    assert isinstance(value, int)
    low, high = bounds(name, broker)
    if not low <= value <= high:
        edge = "less than" if value < low else "greater than"
        limit = "min" if value < low else "max"
        protocol, rest = name.split(".", 1)
        raise config.invalid(value, f"{name} must not be {edge} group.{protocol}.{limit}.{rest}")
    return value


def broken_group_rules(broker: Mapping[str, Any]) -> Iterator[str]:
    """Which of the broker's settings of groups are in conflict with each other, in Kafka's words."""
    for protocol in ("consumer", "share"):
        for rest in ("heartbeat.interval.ms", "session.timeout.ms"):
            name, least, most = (f"group.{protocol}.{bound}{rest}" for bound in ("", "min.", "max."))
            if broker[most] < broker[least]:
                yield f"{most} must be greater than or equal to {least}"
            if broker[name] < broker[least]:
                yield f"{name} must be greater than or equal to {least}"
            if broker[name] > broker[most]:
                yield f"{name} must be less than or equal to {most}"
        heartbeat, session = f"group.{protocol}.heartbeat.interval.ms", f"group.{protocol}.session.timeout.ms"
        if broker[heartbeat] >= broker[session]:
            yield f"{heartbeat} must be less than {session}"


def check_group_sessions(configs: Mapping[str, ConfigValue], broker: Mapping[str, ConfigValue]) -> None:
    """Raises INVALID_CONFIG if members of a group with these configs would expire between two heartbeats."""
    values: dict[str, Any] = {**group_defaults(broker), **configs}
    for protocol in ("consumer", "share"):
        heartbeat, session = f"{protocol}.heartbeat.interval.ms", f"{protocol}.session.timeout.ms"
        if values[session] <= values[heartbeat]:
            raise RaykaError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")
