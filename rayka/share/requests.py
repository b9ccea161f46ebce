"""What a member of a share group asks of the leaders of partitions, and their answers."""

from __future__ import annotations

from typing import NamedTuple

from rayka.errors import ErrorCode
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.acquire import AcquiredRecords
from rayka.types import FileSlice, TopicPartition


class ShareFetchPartition(NamedTuple):
    """A partition to acknowledge records of, and to acquire records from if `is_fetched`. `topic_id` is 16 bytes."""

    topic_partition: TopicPartition
    topic_id: bytes
    is_fetched: bool = True
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = ()


class ShareFetchParams(NamedTuple):
    """Who asks, and for how much. `acquire_mode` is the number of an `AcquireMode`.

    The request waits up to `max_wait_s` seconds until `min_bytes` can be read. Unless a leader has `min_records` that
    can be acquired, it gives none; to know, it loads the state first. A request that waits for records that come
    quickly may be answered once in `gather_s` seconds, with what has gathered. `session_id` tells the sessions of one
    member apart, "" if it has no more than one. A share-partition whose state can't be loaded for now has no records;
    with `tells_not_loaded` it has the error COORDINATOR_NOT_AVAILABLE when the time is over.
    """

    group_id: str
    member_id: str
    max_wait_s: float = 0.0
    min_bytes: int = 0
    max_bytes: int = 0
    max_records: int = 0
    batch_size: int = 1
    acquire_mode: int = 0
    is_renew_ack: bool = False
    session_id: str = ""
    min_records: int = 0
    gather_s: float = 0.0
    tells_not_loaded: bool = False

    @property
    def has_room(self) -> bool:
        """Whether it asks for any records."""
        return self.max_records > 0 and self.max_bytes > 0

    def is_answer(self, result: ShareFetchResult) -> bool:
        """Whether the request waits no longer: there are records, or an error other than that of state not loaded."""
        is_not_loaded = self.tells_not_loaded and result.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        return bool(result.acquired) or (result.error != 0 and not is_not_loaded)


class ShareDepth(NamedTuple):
    """How many records of a partition a group could acquire now, and how many its members hold.

    All below `start_offset` are done (the SPSO).
    """

    available: int
    acquired: int
    start_offset: int


class InFlightRecords(NamedTuple):
    """Records of a share-partition in the same state, the number of a `RecordState`.

    `member_id` is who has acquired them, else "". `remaining_ms` is how long the lock or the delay still lasts.
    """

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int
    member_id: str = ""
    remaining_ms: int = 0


class ShareFetchResult(NamedTuple):
    """What became of one partition. The error of its acknowledgements is apart from that of the fetch.

    `is_new`: all acquired records came after the fetch, so nobody else can have acquired them before.
    """

    error: int = 0
    error_message: str | None = None
    acknowledge_error: int = 0
    acknowledge_error_message: str | None = None
    acquired: tuple[AcquiredRecords, ...] = ()
    records: FileSlice | bytes | None = None
    is_new: bool = False

    @property
    def acquired_count(self) -> int:
        """How many records were acquired."""
        return sum(last_offset - first_offset + 1 for first_offset, last_offset, _ in self.acquired)

    @property
    def acquired_offsets(self) -> list[tuple[int, int]]:
        """The first and the last offset of each range."""
        return [(first_offset, last_offset) for first_offset, last_offset, _ in self.acquired]

    @property
    def size(self) -> int:
        """Bytes of records."""
        if self.records is None:
            return 0
        return self.records.size if isinstance(self.records, FileSlice) else len(self.records)
