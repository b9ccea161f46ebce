"""The records that a share group has in flight, as a table."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from rayka.coordinator.shares.requests import ReadShareGroupStateRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.gateway.share_groups import ShareGroups, SharePartitionOffset, ask_share_coordinator
from rayka.share.record_state import RecordState
from rayka.share.requests import InFlightRecords
from rayka.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("topic", "partition", "first_offset", "last_offset", "state", "delivery_count", "member_id", "remaining_ms")


async def share_records(broker: Broker, group_id: str) -> list[tuple[Any, ...]]:
    """A row of `COLUMNS` for each run of records in the same state, from the start offset of each partition on.

    As the leaders have it; where no member reads, as it is stored. Raises RaykaError.
    """
    rows: list[tuple[Any, ...]] = []
    for topic in await ShareGroups(broker).describe_offsets(group_id):
        for offset in topic.partitions:
            partition = TopicPartition(topic.topic_name, offset.partition)
            found = await broker.share_leaders.records(group_id, partition)
            if found is None:
                found = await _stored(broker, group_id, topic.topic_id, offset)
            rows += [_row(partition, one) for one in found]
    return rows


async def _stored(
    broker: Broker, group_id: str, topic_id: uuid.UUID, offset: SharePartitionOffset
) -> tuple[InFlightRecords, ...]:
    """What the share coordinator keeps; the leader epoch is the one that it knows, so reading changes nothing."""
    if offset.error is not ErrorCode.NONE or offset.start_offset < 0:
        return ()
    request = ReadShareGroupStateRequest(group_id, topic_id, offset.partition, offset.leader_epoch)
    answer = await ask_share_coordinator(broker.shares, request)
    if answer.error is not ErrorCode.NONE:
        raise RaykaError(answer.error, answer.error_message or answer.error.name)
    now_ms = time.time_ns() // 1_000_000
    return tuple(
        InFlightRecords(*batch[:4], remaining_ms=max(0, batch.available_at - now_ms)) for batch in answer.state_batches
    )


def _row(partition: TopicPartition, one: InFlightRecords) -> tuple[Any, ...]:
    state = RecordState(one.state).name
    return (
        *partition, one.first_offset, one.last_offset, state, one.delivery_count, one.member_id or None,
        one.remaining_ms or None,
    )  # fmt: skip


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    """The rows as an Arrow table."""
    import pyarrow as pa

    types = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.int16(), pa.string(), pa.int64())
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    arrays = [pa.array(column, of) for column, of in zip(columns, types, strict=True)]
    return pa.table(arrays, names=list(COLUMNS))
