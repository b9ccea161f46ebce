"""OffsetCommit 1: each offset has its own time. Source: the protocol guide, "Offset Commit/Fetch API"."""

from rayka.gateway.wire.versions.definition import message, of


@message(8, 1)
class OffsetCommitRequestPartition:
    """An offset, when it was committed (-1: now) and what the client wants to remember with it."""

    partition_index: int = of("int32")
    committed_offset: int = of("int64")
    commit_timestamp: int = of("int64", default=-1)
    committed_metadata: str | None = of("string")


@message(8, 1)
class OffsetCommitRequestTopic:
    """A topic."""

    name: str = of("string")
    partitions: tuple[OffsetCommitRequestPartition, ...]


@message(8, 1)
class OffsetCommitRequest:
    """The offsets of one group, from a member or, with generation -1, from outside."""

    group_id: str = of("string")
    generation_id_or_member_epoch: int = of("int32", default=-1)
    member_id: str = of("string")
    topics: tuple[OffsetCommitRequestTopic, ...]


@message(8, 1)
class OffsetCommitResponsePartition:
    """What became of one offset."""

    partition_index: int = of("int32")
    error_code: int = of("error_code")


@message(8, 1)
class OffsetCommitResponseTopic:
    """A topic."""

    name: str = of("string")
    partitions: tuple[OffsetCommitResponsePartition, ...]


@message(8, 1)
class OffsetCommitResponse:
    """The answer."""

    topics: tuple[OffsetCommitResponseTopic, ...]
