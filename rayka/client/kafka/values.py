"""Plain values for a broker's answers about the cluster."""

from __future__ import annotations

import uuid
from typing import NamedTuple


class BrokerNode(NamedTuple):
    """A broker that is up."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """A partition; `leader` is -1 while it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicDescription(NamedTuple):
    """A topic with its partitions in order."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


class Metadata(NamedTuple):
    """The cluster: its brokers by id, the controller's id (-1: not known), and the topics asked for by name."""

    cluster_id: str
    controller_id: int
    brokers: dict[int, BrokerNode]
    topics: dict[str, TopicDescription]


class Config(NamedTuple):
    """A setting as the broker describes it. `source` is Kafka's name, such as DYNAMIC_TOPIC_CONFIG."""

    name: str
    value: str | None
    source: str
    read_only: bool
    is_sensitive: bool
    documentation: str


class GroupListing(NamedTuple):
    """A group. `group_type` is Classic, Consumer, Share or Streams; the state is written as Kafka writes it."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str
