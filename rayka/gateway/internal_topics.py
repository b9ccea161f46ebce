"""How internal topics are created, whichever request needs them first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rayka.config import BrokerConfig
from rayka.coordinator.groups.spec import OFFSETS_TOPIC
from rayka.metadata.commands import NewTopic
from rayka.metadata.image import MetadataImage


def _offsets_topic(config: BrokerConfig, broker_count: int) -> NewTopic:
    return NewTopic(
        OFFSETS_TOPIC,
        num_partitions=int(config["offsets.topic.num.partitions"]),
        replication_factor=max(1, min(int(config["offsets.topic.replication.factor"]), broker_count)),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )


_TOPICS: Mapping[str, Callable[[BrokerConfig, int], NewTopic]] = {OFFSETS_TOPIC: _offsets_topic}


def new_topic(name: str, config: BrokerConfig, image: MetadataImage) -> NewTopic:
    """A topic to be created automatically: an internal topic with its own settings, any other with the defaults."""
    create = _TOPICS.get(name)
    if create is None:
        return NewTopic(name)
    return create(config, sum(not broker.fenced for broker in image.brokers.values()))
