"""Every broker setting that rayka honours: Kafka 4.4's names, and a few of rayka's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rayka.config.definition import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    STRING,
    ConfigDef,
    ConfigValue,
)
from rayka.config.groups import GROUP_COORDINATOR_CONFIGS
from rayka.config.remote import REMOTE_CONFIGS
from rayka.config.shares import SHARE_COORDINATOR_CONFIGS, SHARE_GROUP_BROKER_CONFIGS
from rayka.config.topic import TOPIC_CONFIGS
from rayka.config.transactions import TRANSACTION_COORDINATOR_CONFIGS
from rayka.config.unused import UNUSED_CONFIGS, with_reason

LISTENING = "Listeners and connections"
STORING = "Log directories"
TOPICS = "Topics and replication"
DEFAULTS = "Defaults of topic configs"
PRODUCERS = "Producers"
METADATA = "The controller"
ACTORS = "Actors"
GROUPS = "Groups"
SHARE_GROUPS = "Share groups"
TRANSACTIONS = "Transactions"
CLEANING = "The log cleaner"
TIERING = "Tiered storage"
UNUSED = "Accepted, but not in use"


def _connection_limits(value: ConfigValue) -> str | None:
    for item in filter(None, str(value).split(",")):
        host, _, limit = item.rpartition(":")
        digits = limit.strip()
        is_limit = digits.isdecimal() and len(digits) <= len(str(INT_MAX)) and int(digits) <= INT_MAX
        if not (host.strip() and is_limit):
            return f"{item} is not of the form host:limit"
    return None


def _listening() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "listeners", LIST, "PLAINTEXT://127.0.0.1:9092",
        "Where the gateways listen, as NAME://HOST:PORT. An empty host means all interfaces. rayka listens on "
        "loopback unless told otherwise.", importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "advertised.listeners", LIST, None,
        "The addresses that clients are given, if they differ from `listeners`.", importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "socket.request.max.bytes", INT, "104857600", "The largest request that a connection may send.",
        lower=1, importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "socket.send.buffer.bytes", INT, "102400",
        "The send buffer (SO_SNDBUF) of client connections; -1 leaves it to the operating system.", importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "socket.receive.buffer.bytes", INT, "102400",
        "The receive buffer (SO_RCVBUF) of client connections; if it is -1 or not set, the operating system sizes it.",
        importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "socket.listen.backlog.size", INT, "50", "How many connections may wait to be accepted.", lower=1,
    )  # fmt: skip


def _connections() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "max.connections", INT, str(INT_MAX), "How many connections a broker accepts.",
        lower=0, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "max.connections.per.ip", INT, str(INT_MAX), "How many connections a broker accepts from one address.",
        lower=0, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "max.connections.per.ip.overrides", STRING, "",
        "Other limits for some addresses or host names: `host1:100,127.0.0.1:200`.",
        check=_connection_limits, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "connections.max.idle.ms", LONG, "600000", "A connection that is silent for this long is closed.",
    )  # fmt: skip


def _requests() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "queued.max.request.bytes", LONG, "-1",
        "How many bytes of requests may be in progress in a gateway before it stops reading; -1 means 512 MiB.",
    )  # fmt: skip
    yield ConfigDef(
        "fetch.max.bytes", INT, "57671680", "The most bytes of records that one fetch response carries.", lower=1024,
    )  # fmt: skip
    yield ConfigDef(
        "max.incremental.fetch.session.cache.slots", INT, "1000",
        "How many incremental fetch sessions (KIP-227) are kept.", lower=0,
    )  # fmt: skip
    yield ConfigDef(
        "max.request.partition.size.limit", INT, "2000",
        "The most partitions that one DescribeTopicPartitions response carries.", lower=1,
    )  # fmt: skip


def _storing() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "broker.id", INT, "-1", "The broker's id; `node.id` wins over it. -1 lets the controller choose.",
        lower=-1, importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "node.id", INT, "-1",
        "The broker's id. -1 lets the controller choose; a node with the same log directories keeps its id.",
        lower=-1, importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "broker.rack", STRING, None, "The rack of the broker; replicas of a partition are spread over racks.",
    )  # fmt: skip
    yield ConfigDef(
        "log.dir", LIST, "/tmp/rayka-logs", "The directories for logs, if `log.dirs` is not given.", importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "log.dirs", LIST, None,
        "The directories for logs, separated by commas. One that fails goes offline alone.", importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "num.recovery.threads.per.data.dir", INT, "2",
        "How many logs of one directory are recovered at the same time.",
        lower=1, importance="high", update_mode=CLUSTER_WIDE,
    )  # fmt: skip


def _log_checks() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "log.retention.check.interval.ms", LONG, "300000",
        "How often each log is checked for segments that retention deletes.", lower=1,
    )  # fmt: skip
    yield ConfigDef(
        "log.flush.scheduler.interval.ms", LONG, "9223372036854775807",
        "How often logs are checked for records that are due to be flushed by `flush.ms`.", importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "log.flush.offset.checkpoint.interval.ms", INT, "60000",
        "How often the recovery point of each log is written.", lower=0, importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "log.flush.start.offset.checkpoint.interval.ms", INT, "60000",
        "How often the start offset of each log is written.", lower=0, importance="high",
    )  # fmt: skip


def _cleaning() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "log.cleaner.enable", BOOLEAN, "true",
        "Whether compacted topics, `__consumer_offsets` among them, are compacted. Without that they grow for ever.",
    )  # fmt: skip
    yield ConfigDef(
        "log.cleaner.threads", INT, "1",
        "How many logs of a node are compacted at a time, each by a process of its own.",
        lower=0, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "log.cleaner.backoff.ms", LONG, "15000", "How often the cleaner looks for a log to compact.",
        lower=0, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "log.cleaner.dedupe.buffer.size", LONG, "134217728",
        "The memory for the keys of the part of a log that is compacted in one round, for all of `log.cleaner.threads` "
        "together; a key takes 24 bytes.", update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "log.cleaner.io.buffer.size", INT, "524288",
        "How much of a segment is read at once, for all of `log.cleaner.threads` together.",
        lower=0, update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "log.cleaner.io.buffer.load.factor", DOUBLE, "0.9",
        "How full the memory for keys may become, 0 to 1. A fuller one holds more keys and is slower.",
        update_mode=CLUSTER_WIDE,
    )  # fmt: skip
    yield ConfigDef(
        "log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308",
        "How fast compaction may read and write, all of `log.cleaner.threads` together.", update_mode=CLUSTER_WIDE,
    )  # fmt: skip


def _topics() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "num.partitions", INT, "1", "How many partitions a topic gets if its creation names no number.", lower=1,
    )  # fmt: skip
    yield ConfigDef(
        "default.replication.factor", INT, "1",
        "How many replicas a partition gets if the creation of its topic names no number.",
    )  # fmt: skip
    yield ConfigDef(
        "auto.create.topics.enable", BOOLEAN, "true",
        "Whether a missing topic is created when a client asks for it, if the client allows that.", importance="high",
    )  # fmt: skip
    yield ConfigDef(
        "delete.topic.enable", BOOLEAN, "true", "Whether topics can be deleted.", importance="high",
    )  # fmt: skip


_FROM_TOPIC: Mapping[str, Mapping[str, object]] = {
    "log.roll.ms": {"default": None},
    "log.roll.jitter.ms": {"default": None},
    "log.retention.ms": {"default": None, "lower": None},
    "log.flush.interval.ms": {"default": None, "lower": None},
}
_HIGH = (
    "compression.type", "log.flush.interval.messages", "log.flush.interval.ms", "log.retention.bytes",
    "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms", "log.segment.bytes", "log.segment.delete.delay.ms",
    "message.max.bytes", "min.insync.replicas", "unclean.leader.election.enable",
)  # fmt: skip


def _defaults() -> Iterator[ConfigDef]:
    for definition in TOPIC_CONFIGS.values():
        if definition.synonyms:
            name = definition.synonyms[0].name
            described = replace(
                definition, name=name, doc=f"The default of the topic config `{definition.name}`. {definition.doc}",
                synonyms=(), importance="high" if name in _HIGH else "medium", update_mode=CLUSTER_WIDE,
            )  # fmt: skip
            yield replace(described, **_FROM_TOPIC.get(name, {}))  # type: ignore[arg-type]
    for name, default, lower, topic in (
        ("log.roll.hours", "168", 1, "segment.ms"), ("log.roll.jitter.hours", "0", 0, "segment.jitter.ms"),
        ("log.retention.hours", "168", None, "retention.ms"),
    ):  # fmt: skip
        yield ConfigDef(
            name, INT, default, f"The default of the topic config `{topic}`, in hours.", lower=lower, importance="high",
        )  # fmt: skip
    yield ConfigDef(
        "log.retention.minutes", INT, None, "The default of the topic config `retention.ms`, in minutes.",
        importance="high",
    )  # fmt: skip


def _producers() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "producer.id.expiration.ms", INT, "86400000",
        "How long a partition remembers an idempotent producer that sends nothing.",
        lower=1, importance="low", update_mode=CLUSTER_WIDE,
    )  # fmt: skip


def _metadata() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "metadata.log.max.record.bytes.between.snapshots", LONG, "20971520",
        "How many bytes of metadata records are written before the next snapshot of the image.",
        lower=1, importance="high",
    )  # fmt: skip


def _failing() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "broker.session.timeout.ms", INT, "9000",
        "How long a process of the broker may take to come back before its partitions count as offline.",
    )  # fmt: skip


def _actors() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "partition.actors.per.node", INT, "-1",
        "Up to this many replicas on a node each have an actor (a process) of their own; further ones join the actor "
        "with the fewest. Each also serves clients on the node's port, directly for the partitions that it holds. "
        "-1 stands for half as many as the node has cores, at least 1 and at most 16.",
        lower=-1,
    )  # fmt: skip
    yield ConfigDef(
        "warm.partition.actors", INT, "2",
        "How many partition actors without a replica a node keeps started, so that a new topic need not wait for a "
        "process.", lower=0,
    )  # fmt: skip
    yield ConfigDef(
        "gateways.per.node", INT, "0",
        "How many actors that only serve clients share the node's port with the partition actors.", lower=0,
    )  # fmt: skip


BROKER_CONFIGS: Mapping[str, ConfigDef] = {
    definition.name: replace(definition, group=title, doc=with_reason(definition))
    for title, group in (
        (LISTENING, _listening), (LISTENING, _connections), (LISTENING, _requests),
        (STORING, _storing), (STORING, _log_checks), (CLEANING, _cleaning), (TIERING, REMOTE_CONFIGS.values),
        (TOPICS, _topics), (DEFAULTS, _defaults),
        (PRODUCERS, _producers), (METADATA, _metadata), (METADATA, _failing),
        (GROUPS, GROUP_COORDINATOR_CONFIGS.values), (SHARE_GROUPS, SHARE_GROUP_BROKER_CONFIGS.values),
        (SHARE_GROUPS, SHARE_COORDINATOR_CONFIGS.values), (TRANSACTIONS, TRANSACTION_COORDINATOR_CONFIGS.values),
        (ACTORS, _actors), (UNUSED, UNUSED_CONFIGS.values),
    )
    for definition in group()
}  # fmt: skip
