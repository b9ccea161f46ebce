"""TxnOffsetCommit 6: topics by their ids."""

import datetime
import uuid

from rayka.gateway.wire.versions.definition import message, of


@message(28, 6, flexible=True)
class TxnOffsetCommitRequestPartition:
    """The offset of one partition."""

    partition_index: int = of("int32")
    committed_offset: int = of("int64")
    committed_leader_epoch: int = of("int32", default=-1)
    committed_metadata: str | None = of("string")


@message(28, 6, flexible=True)
class TxnOffsetCommitRequestTopic:
    """The partitions of one topic."""

    topic_id: uuid.UUID | None = of("uuid")
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@message(28, 6, flexible=True)
class TxnOffsetCommitRequest:
    """Offsets that count when the transaction commits."""

    transactional_id: str = of("string")
    group_id: str = of("string")
    producer_id: int = of("int64")
    producer_epoch: int = of("int16")
    generation_id: int = of("int32", default=-1)
    member_id: str = of("string", default="")
    group_instance_id: str | None = of("string", default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


@message(28, 6, flexible=True)
class TxnOffsetCommitResponsePartition:
    """What became of one offset."""

    partition_index: int = of("int32")
    error_code: int = of("error_code")


@message(28, 6, flexible=True)
class TxnOffsetCommitResponseTopic:
    """The partitions of one topic."""

    topic_id: uuid.UUID | None = of("uuid")
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@message(28, 6, flexible=True)
class TxnOffsetCommitResponse:
    """The answer."""

    throttle_time: datetime.timedelta = of("timedelta_i32")
    topics: tuple[TxnOffsetCommitResponseTopic, ...]
