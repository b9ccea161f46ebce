"""ListOffsets 0: how many offsets before a time. Source: the protocol guide, "Offset API"."""

from rayka.gateway.wire.versions.definition import message, of


@message(2, 0)
class ListOffsetsPartition:
    """The partition, the time, and how many offsets at most."""

    partition_index: int = of("int32")
    timestamp: int = of("int64")
    max_num_offsets: int = of("int32")


@message(2, 0)
class ListOffsetsTopic:
    """A topic."""

    name: str = of("string")
    partitions: tuple[ListOffsetsPartition, ...]


@message(2, 0)
class ListOffsetsRequest:
    """Replica id -1 stands for a consumer."""

    replica_id: int = of("int32")
    topics: tuple[ListOffsetsTopic, ...]


@message(2, 0)
class ListOffsetsPartitionResponse:
    """Offsets in descending order."""

    partition_index: int = of("int32")
    error_code: int = of("error_code")
    old_style_offsets: tuple[int, ...] = of("int64")


@message(2, 0)
class ListOffsetsTopicResponse:
    """A topic."""

    name: str = of("string")
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@message(2, 0)
class ListOffsetsResponse:
    """The answer."""

    topics: tuple[ListOffsetsTopicResponse, ...]
