"""OffsetFetch 0: what was never committed is an error. Source: the protocol guide, "Offset Commit/Fetch API"."""

from rayka.gateway.wire.versions.definition import message, of


@message(9, 0)
class OffsetFetchRequestTopic:
    """A topic."""

    name: str = of("string")
    partition_indexes: tuple[int, ...] = of("int32")


@message(9, 0)
class OffsetFetchRequest:
    """The partitions of one group."""

    group_id: str = of("string")
    topics: tuple[OffsetFetchRequestTopic, ...]


@message(9, 0)
class OffsetFetchResponsePartition:
    """What is committed for a partition."""

    partition_index: int = of("int32")
    committed_offset: int = of("int64")
    metadata: str | None = of("string")
    error_code: int = of("error_code")


@message(9, 0)
class OffsetFetchResponseTopic:
    """A topic."""

    name: str = of("string")
    partitions: tuple[OffsetFetchResponsePartition, ...]


@message(9, 0)
class OffsetFetchResponse:
    """The answer."""

    topics: tuple[OffsetFetchResponseTopic, ...]
