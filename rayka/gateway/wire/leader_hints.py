"""The current leader in Produce and Fetch responses, for a client whose metadata is old (KIP-951)."""

from __future__ import annotations

import struct

from rayka.errors import ErrorCode
from rayka.gateway.wire.reader import INT32
from rayka.metadata.image import MetadataImage
from rayka.types import NO_LEADER, TopicPartition
from rayka.varint import encode_uvarint

HINTED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
LEADER = struct.Struct(">ii")
_NODE_ENDPOINTS_TAG = 0


class LeaderHints:
    """Collects the leaders that one response names."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._leaders: set[int] = set()

    def tags(self, error: int, topic_partition: TopicPartition | None, tag: int) -> bytes:
        """The tagged fields of a partition: its current leader, if the error is about that."""
        if error not in HINTED or topic_partition is None:
            return b"\0"
        partition = self._image.partition(topic_partition)
        if partition is None or partition.leader == NO_LEADER:
            return b"\0"
        self._leaders.add(partition.leader)
        leader = LEADER.pack(partition.leader, partition.leader_epoch) + b"\0"
        return bytes((1, tag, len(leader))) + leader

    def node_endpoints(self) -> bytes:
        """The tagged fields of the whole response: where those leaders are."""
        brokers = [self._image.brokers[leader] for leader in sorted(self._leaders) if leader in self._image.brokers]
        if not brokers:
            return b"\0"
        out = bytearray(encode_uvarint(len(brokers) + 1))
        for broker in brokers:
            out += INT32.pack(broker.broker_id) + _compact_string(broker.host) + INT32.pack(broker.port)
            out += (b"\0" if broker.rack is None else _compact_string(broker.rack)) + b"\0"
        return bytes((1, _NODE_ENDPOINTS_TAG)) + encode_uvarint(len(out)) + bytes(out)


def _compact_string(text: str) -> bytes:
    encoded = text.encode()
    return encode_uvarint(len(encoded) + 1) + encoded
