"""The cluster's topics as group coordinators see them. The shell makes one whenever the metadata has changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple


class TopicMetadata(NamedTuple):
    """`racks` has, for each partition, the sorted racks of its replicas; empty if none is known."""

    topic_id: uuid.UUID
    name: str
    num_partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


class Topics:
    """All topics, by name and by id. `version` is the metadata version that they were taken from."""

    def __init__(self, topics: Iterable[TopicMetadata] = (), version: int = 0) -> None:
        self.version = version
        self.by_name = {topic.name: topic for topic in topics}
        self.by_id = {topic.topic_id: topic for topic in self.by_name.values()}

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic; None if it is gone."""
        topic = self.by_id.get(topic_id)
        return None if topic is None else topic.name
