"""The settings of internal topics, which hold whichever request creates the topic first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rayka.config import BrokerConfig
from rayka.metadata.commands import NewTopic


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


_TOPICS: Mapping[str, Callable[[BrokerConfig], NewTopic]] = {"__consumer_offsets": _offsets_topic}


def with_own_settings(topic: NewTopic, config: BrokerConfig, broker_count: int) -> NewTopic:
    """An internal topic with its own settings wherever the request has none; any other topic as it is.

    The default replication factor is no larger than the number of brokers.
    """
    if topic.name not in _TOPICS:
        return topic
    own = _TOPICS[topic.name](config)
    configs = {**own.configs, **topic.configs}
    if topic.assignments:
        return replace(topic, configs=configs)
    factor = max(1, min(own.replication_factor, broker_count))
    return replace(
        topic,
        num_partitions=own.num_partitions if topic.num_partitions == -1 else topic.num_partitions,
        replication_factor=factor if topic.replication_factor == -1 else topic.replication_factor,
        configs=configs,
    )
