"""The settings of internal topics, which hold whichever request creates the topic first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rayka.config import BrokerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic

MIN_ISR = "min.insync.replicas"


def _offsets_topic(config: BrokerConfig) -> NewTopic:
    return NewTopic(
        "__consumer_offsets",
        num_partitions=int(config["offsets.topic.num.partitions"]),
        replication_factor=int(config["offsets.topic.replication.factor"]),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )


def _share_state_topic(config: BrokerConfig) -> NewTopic:
    """Its coordinators delete what no longer counts, so retention must not."""
    return NewTopic(
        "__share_group_state",
        num_partitions=int(config["share.coordinator.state.topic.num.partitions"]),
        replication_factor=int(config["share.coordinator.state.topic.replication.factor"]),
        configs={
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "segment.bytes": str(config["share.coordinator.state.topic.segment.bytes"]),
            "retention.ms": "-1",
            MIN_ISR: str(config["share.coordinator.state.topic.min.isr"]),
        },
    )


def _transaction_state_topic(config: BrokerConfig) -> NewTopic:
    return NewTopic(
        "__transaction_state",
        num_partitions=int(config["transaction.state.log.num.partitions"]),
        replication_factor=int(config["transaction.state.log.replication.factor"]),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "unclean.leader.election.enable": "false",
            MIN_ISR: str(config["transaction.state.log.min.isr"]),
        },
    )


def _remote_log_metadata_topic(config: BrokerConfig) -> NewTopic:
    """What it says must survive a power cut: by then the local files of a copied segment may be deleted."""
    prefix = "rlmm.config.remote.log.metadata.topic."
    return NewTopic(
        "__remote_log_metadata",
        num_partitions=int(config[f"{prefix}num.partitions"]),
        replication_factor=int(config[f"{prefix}replication.factor"]),
        configs={
            "cleanup.policy": "delete",
            "flush.messages": "1",
            "retention.ms": str(config[f"{prefix}retention.ms"]),
            "remote.storage.enable": "false",
            MIN_ISR: str(config[f"{prefix}min.isr"]),
        },
    )


_TOPICS: Mapping[str, Callable[[BrokerConfig], NewTopic]] = {
    "__consumer_offsets": _offsets_topic,
    "__remote_log_metadata": _remote_log_metadata_topic,
    "__share_group_state": _share_state_topic,
    "__transaction_state": _transaction_state_topic,
}


def check_may_grow(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a topic whose number of partitions says where its records are.

    With another number, committed offsets and transactions would be looked for where they never were.
    """
    if name in _TOPICS:
        message = f"The number of partitions of the topic {name} cannot be changed."
        raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def with_own_settings(topic: NewTopic, config: BrokerConfig, broker_count: int) -> NewTopic:
    """An internal topic with its own settings wherever the request has none; any other topic as it is.

    The default replication factor is no larger than the number of brokers, nor the in-sync replicas that it asks for.
    """
    if topic.name not in _TOPICS:
        return topic
    defaults = _TOPICS[topic.name](config)
    factor = max(1, min(defaults.replication_factor, broker_count))
    configs = {**_with_min_isr(defaults.configs, factor), **topic.configs}
    if topic.assignments:
        return replace(topic, configs=configs)
    return replace(
        topic,
        num_partitions=defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions,
        replication_factor=factor if topic.replication_factor == -1 else topic.replication_factor,
        configs=configs,
    )


def _with_min_isr(configs: Mapping[str, str | None], factor: int) -> dict[str, str | None]:
    """The configs with as many in-sync replicas as there can be."""
    min_isr = configs.get(MIN_ISR)
    return {**configs, MIN_ISR: str(min(int(min_isr), factor))} if min_isr is not None else dict(configs)
