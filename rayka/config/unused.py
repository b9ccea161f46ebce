"""Settings that are accepted but have no effect, which Kafka can change at run time or rayka does not support yet.

Tools set them on any Kafka, so they are checked, kept and described like all others; their text says that they are not
in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rayka.config.definition import (
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    PER_BROKER,
    SHORT,
    STRING,
    ConfigDef,
    ConfigType,
)

_LOADING = "a coordinator reads its log a MiB at a time"
_WRITES = "a coordinator's write waits for nothing but its own flush"
_PLAIN = "coordinators write without compression"
_THREADS = "actors take the place of thread pools"
_SASL = "SASL is not served yet"

NOT_IN_USE: Mapping[str, str] = {
    "num.recovery.threads.per.data.dir": "each partition actor recovers its own directory",
    "log.flush.start.offset.checkpoint.interval.ms": "it is written with the recovery points, and by DeleteRecords",
    "group.coordinator.threads": _THREADS,
    "group.coordinator.background.threads": _THREADS,
    "group.coordinator.append.linger.ms": "a coordinator appends at once",
    "group.coordinator.cached.buffer.max.bytes": "a coordinator keeps no buffers",
    "share.coordinator.threads": _THREADS,
    "share.coordinator.append.linger.ms": "a coordinator appends at once",
    "share.coordinator.cached.buffer.max.bytes": "a coordinator keeps no buffers",
    "share.fetch.purgatory.purge.interval.requests": "a share fetch that has ended leaves nothing behind",
    "offsets.load.buffer.size": _LOADING,
    "share.coordinator.load.buffer.size": _LOADING,
    "transaction.state.log.load.buffer.size": _LOADING,
    "offsets.commit.timeout.ms": _WRITES,
    "share.coordinator.write.timeout.ms": _WRITES,
    "offsets.topic.compression.codec": _PLAIN,
    "share.coordinator.state.topic.compression.codec": _PLAIN,
    "add.partitions.to.txn.retry.backoff.ms": "a request goes on as soon as the markers are written",
    "group.consumer.regex.refresh.interval.ms": "topics are matched as soon as they come and go",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "each transaction has a timer",
    "leader.replication.throttled.replicas": "replication is not throttled",
    "follower.replication.throttled.replicas": "replication is not throttled",
}
"""Why a setting that has a definition elsewhere does nothing."""


def _threads() -> Iterator[ConfigDef]:
    for name, default in (("background.threads", "10"), ("num.io.threads", "8"), ("num.network.threads", "3")):
        yield _cluster_wide(name, INT, default, _THREADS, lower=1)
    yield _cluster_wide("num.replica.fetchers", INT, "1", "replication over several nodes is not served yet", lower=1)


_SASL_SETTINGS: tuple[tuple[str, ConfigType, str | None], ...] = (
    ("sasl.enabled.mechanisms", LIST, "GSSAPI"),
    ("sasl.jaas.config", PASSWORD, None),
    ("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit"),
    ("sasl.kerberos.min.time.before.relogin", LONG, "60000"),
    ("sasl.kerberos.principal.to.local.rules", LIST, "DEFAULT"),
    ("sasl.kerberos.service.name", STRING, None),
    ("sasl.kerberos.ticket.renew.jitter", DOUBLE, "0.05"),
    ("sasl.kerberos.ticket.renew.window.factor", DOUBLE, "0.8"),
    ("sasl.login.refresh.buffer.seconds", SHORT, "300"),
    ("sasl.login.refresh.min.period.seconds", SHORT, "60"),
    ("sasl.login.refresh.window.factor", DOUBLE, "0.8"),
    ("sasl.login.refresh.window.jitter", DOUBLE, "0.05"),
    ("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI"),
)


def _sasl() -> Iterator[ConfigDef]:
    for name, kind, default in _SASL_SETTINGS:
        doc, secret = f"Not in use: {_SASL}.", kind is PASSWORD
        yield ConfigDef(name, kind, default, doc, update_mode=PER_BROKER, sensitive=secret)


def _cluster_wide(name: str, kind: ConfigType, default: str, reason: str, lower: int | None = None) -> ConfigDef:
    return ConfigDef(name, kind, default, f"Not in use: {reason}.", lower=lower, update_mode=CLUSTER_WIDE)


UNUSED_CONFIGS: Mapping[str, ConfigDef] = {
    definition.name: definition for group in (_threads, _sasl) for definition in group()
}
"""Kafka's settings that can be changed at run time and that nothing of rayka reads."""


def with_reason(definition: ConfigDef) -> str:
    """The text of a setting; it begins with the reason if the setting is not in use."""
    reason = NOT_IN_USE.get(definition.name)
    return definition.doc if reason is None else f"Not in use: {reason}. {definition.doc}"
