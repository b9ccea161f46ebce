"""Kafka's broker settings that rayka ignores, and why, so that any server.properties can be used unchanged.

A name that is neither honoured nor listed here is unknown: most likely a misspelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

IGNORED_CONFIGS: Mapping[str, tuple[str, ...]] = {
    "The controller is an actor, found by name: there is no quorum of brokers to configure.": (
        "process.roles", "controller.*", "early.start.listeners", "initial.broker.registration.timeout.ms",
        "broker.heartbeat.interval.ms", "server.max.startup.time.ms", "controlled.shutdown.enable",
        "metadata.log.dir", "metadata.log.max.snapshot.interval.ms", "metadata.log.segment.*",
        "metadata.max.*", "internal.metadata.*", "unclean.leader.election.interval.ms",
    ),
    "Actors replace the thread pools, purgatories and queues between threads.": (
        "group.consumer.assignor.offload.enable", "*.purgatory.purge.interval.requests",
    ),
    "A request is started as soon as it is read, so none are queued: those in progress are bounded by their bytes.": (
        "queued.max.requests",
    ),
    "Between nodes rayka uses Ray, not Kafka's protocol.": (
        "inter.broker.listener.name", "security.inter.broker.protocol", "request.timeout.ms",
        "socket.connection.setup.timeout.*", "replica.socket.*",
    ),
    "Replication over several nodes is not served yet.": (
        "num.replica.*", "replica.*", "replication.quota.*", "*.replication.throttled.rate",
        "alter.log.dirs.replication.quota.*", "auto.leader.rebalance.enable", "leader.imbalance.*",
        "follower.fetch.*", "cordoned.log.dirs", "log.dir.failure.timeout.ms",
    ),
    "TLS, SASL, ACLs, tokens and quotas are not served yet.": (
        "ssl.*", "sasl.*", "listener.security.protocol.map", "authorizer.class.name", "principal.builder.class",
        "security.providers", "delegation.token.*", "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms", "max.connection.creation.rate", "quota.*", "client.quota.callback.class",
        "config.providers",
    ),
    "Streams groups are not served yet.": ("group.streams.*",),
    "The parts of share groups can't be replaced by plug-ins.": (
        "group.share.persister.class.name", "group.share.dlq.manager.class.name", "group.share.assignor.offload.enable",
    ),
    "The remote store and its metadata are not plug-ins.": ("remote.*", "rsm.config.*", "rlmm.config.*"),
    "Plug-ins of the Java broker can't be loaded.": (
        "alter.config.policy.class.name", "create.topic.policy.class.name", "metric.reporters",
        "kafka.metrics.*", "metrics.*", "auto.include.jmx.reporter", "telemetry.max.bytes",
    ),
    "These exist for Kafka's own tests.": (
        "log.initial.task.delay.ms", "producer.id.expiration.check.interval.ms", "unstable.*",
    ),
}  # fmt: skip


def reason_ignored(name: str) -> str | None:
    """Why rayka does not honour a setting of Kafka's; None if Kafka has no such setting either."""
    for reason, patterns in IGNORED_CONFIGS.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return reason
    return None
