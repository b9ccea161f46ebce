"""The settings of transaction coordinators: Kafka 4.4's names, types, defaults and bounds, in our words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rayka.config.definition import BOOLEAN, CLUSTER_WIDE, SHORT, ConfigDef, int_config

_int = partial(int_config, importance="high")


_TIMES = (
    _int("transaction.max.timeout.ms", 900000, "The longest transaction.timeout.ms that a producer may ask for."),
    _int(
        "transactional.id.expiration.ms",
        604800000,
        "A transactional id that has had no transaction for this long is forgotten.",
    ),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        "How often transactional ids are checked against transactional.id.expiration.ms.",
        importance="low",
    ),
    _int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        "How often transactions are checked against their timeouts.",
        importance="low",
    ),
    _int(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "How long a request that begins a transaction waits for the markers of the one before.",
        lower=0,
    ),
    _int(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "How often they are checked.",
    ),
)
_TOPIC = (
    _int("transaction.state.log.num.partitions", 50, "Partitions of __transaction_state when it is created."),
    ConfigDef(
        "transaction.state.log.replication.factor",
        SHORT,
        "3",
        "Replicas of __transaction_state when it is created; fewer if there are fewer brokers.",
        lower=1,
        importance="high",
    ),
    _int("transaction.state.log.min.isr", 2, "min.insync.replicas of __transaction_state when it is created."),
    _int("transaction.state.log.segment.bytes", 104857600, "Segment size of __transaction_state, in bytes."),
    _int("transaction.state.log.load.buffer.size", 5242880, "Bytes read at once when a coordinator loads its log."),
)
_SWITCHES = (
    ConfigDef(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "Whether a partition asks the coordinator before it appends the first batch of a transaction (KIP-890).",
        importance="low",
        update_mode=CLUSTER_WIDE,
    ),
    ConfigDef(
        "transaction.two.phase.commit.enable",
        BOOLEAN,
        "false",
        "Whether producers may open transactions that never time out (KIP-939).",
        importance="low",
    ),
)

TRANSACTION_COORDINATOR_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config for config in (*_TIMES, *_TOPIC, *_SWITCHES)
}
