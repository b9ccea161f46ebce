"""OffsetForLeaderEpoch 1: the response says which epoch it is about."""

from rayka.gateway.wire.versions.definition import message, of


@message(23, 1)
class OffsetForLeaderPartition:
    """The partition and the epoch to look up."""

    partition: int = of("int32")
    leader_epoch: int = of("int32")


@message(23, 1)
class OffsetForLeaderTopic:
    """A topic."""

    topic: str = of("string")
    partitions: tuple[OffsetForLeaderPartition, ...]


@message(23, 1)
class OffsetForLeaderEpochRequest:
    """The topics."""

    topics: tuple[OffsetForLeaderTopic, ...]


@message(23, 1)
class EpochEndOffset:
    """Where the epoch ended."""

    error_code: int = of("error_code")
    partition: int = of("int32")
    leader_epoch: int = of("int32", default=-1)
    end_offset: int = of("int64", default=-1)


@message(23, 1)
class OffsetForLeaderTopicResult:
    """A topic."""

    topic: str = of("string")
    partitions: tuple[EpochEndOffset, ...]


@message(23, 1)
class OffsetForLeaderEpochResponse:
    """The answer."""

    topics: tuple[OffsetForLeaderTopicResult, ...]
