"""A topic of which only the offsets matter."""

from __future__ import annotations

import uuid

from rayka.ranges.plan import OffsetRange
from rayka.types import OffsetSpec, TopicPartition


class Topic:
    """The topic `t`: for each partition the offsets that it has. `times` gives each partition's answer to a time.

    `uncommitted` is how many records each has after those, of transactions that are open.
    """

    def __init__(self, *bounds):
        self.topic_id = uuid.uuid4()
        self.bounds = list(bounds)
        self.times = {}
        self.uncommitted = 0

    def topic_ids(self, *, existing_only=False):
        return {TopicPartition("t", partition): self.topic_id for partition in range(len(self.bounds))}

    def list_offsets(self, timestamps):
        return {each: self._offset(each.partition, timestamp) for each, timestamp in timestamps.items()}

    def high_watermarks(self, partitions):
        return {each: self.bounds[each.partition][1] + self.uncommitted for each in partitions}

    def recreate(self, *bounds):
        """Delete the topic and create it again; without bounds it stays deleted."""
        self.__init__(*bounds)

    def _offset(self, partition, timestamp):
        if timestamp >= 0:
            return self.times[timestamp][partition]
        return self.bounds[partition][0 if timestamp == OffsetSpec.EARLIEST else 1]


def ranges(*bounds):
    return [OffsetRange("t", partition, *each) for partition, each in enumerate(bounds)]


def bounds(parts):
    return [(part.partition, part.start_offset, part.end_offset) for part in parts]
