"""OffsetCommit 0: no membership. Source: the protocol guide, "Offset Commit/Fetch API"."""

from rayka.gateway.wire.versions.definition import message, of


@message(8, 0)
class OffsetCommitRequestPartition:
    """An offset and what the client wants to remember with it."""

    partition_index: int = of("int32")
    committed_offset: int = of("int64")
    committed_metadata: str | None = of("string")


@message(8, 0)
class OffsetCommitRequestTopic:
    """A topic."""

    name: str = of("string")
    partitions: tuple[OffsetCommitRequestPartition, ...]


@message(8, 0)
class OffsetCommitRequest:
    """The offsets of one group."""

    group_id: str = of("string")
    topics: tuple[OffsetCommitRequestTopic, ...]


@message(8, 0)
class OffsetCommitResponsePartition:
    """What became of one offset."""

    partition_index: int = of("int32")
    error_code: int = of("error_code")


@message(8, 0)
class OffsetCommitResponseTopic:
    """A topic."""

    name: str = of("string")
    partitions: tuple[OffsetCommitResponsePartition, ...]


@message(8, 0)
class OffsetCommitResponse:
    """The answer."""

    topics: tuple[OffsetCommitResponseTopic, ...]
