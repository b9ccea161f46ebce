"""Which tables readers of a range get, which are kept for others, and which are dropped. A ref is the table itself."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections import Counter

import pytest

from rayka.actors.channel.requests import PublishRange
from rayka.actors.replica.published_ranges import TTL_S, PublishedRanges
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.files import RealFiles
from rayka.storage.format.compression import Codec
from rayka.types import IsolationLevel, TopicPartition
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, ORDERS, append, batch, open_log

COLUMNS = ("offset", "value")
END = 2**63 - 1
BATCHES, BATCH_RECORDS = 20, 10
COUNT = BATCHES * BATCH_RECORDS


class Published:
    """The cache over a log of small segments, with a clock that does not move."""

    def __init__(self, directory, max_bytes):
        self.log = open_log(directory, segment_bytes=700)
        for number in range(BATCHES):
            append(self.log, *(b"value %d" % (number * BATCH_RECORDS + i) for i in range(BATCH_RECORDS)))
        self.partition = Partition(self.log, uuid.uuid4())
        self.partition.become_leader(0)
        replicas = Replicas()
        replicas.add(self.partition)
        self.now = 0.0
        self.max_bytes = max_bytes
        self.made = []
        self.lent = set()
        self.cache = PublishedRanges(replicas, lambda: self.max_bytes, clock=lambda: self.now, store=self)

    def put(self, table):
        self.made.append(table)
        return table

    def key(self, table):
        return str(id(table))

    def referenced(self):
        return self.lent

    async def publish(self, *fields):
        return await self.cache.publish(PublishRange(*fields))

    async def read(self, start=0, end=COUNT, columns=COLUMNS, isolation=IsolationLevel.READ_COMMITTED):
        tables = []
        while start < end:
            found = await self.publish(ORDERS, start, end, columns, isolation)
            if not found:
                break
            for each in found:
                assert each.start_offset == start < each.end_offset <= end
                start = each.end_offset
                tables.append(each.ref)
        return tables

    def close(self):
        self.cache.close()
        self.log.close(0)


@pytest.fixture
def published(tmp_path):
    made = Published(tmp_path, 1 << 30)
    yield made
    made.close()


def offsets(tables):
    return [offset for table in tables for offset in table.column("offset").to_pylist()]


def test_a_range_is_read_whole_and_in_order(published):
    async def check():
        assert offsets(await published.read()) == list(range(COUNT))
        assert offsets(await published.read(13, 14)) == [13]
        assert offsets(await published.read(95, 117)) == list(range(95, 117))
        assert offsets(await published.read(COUNT, END)) == []

    asyncio.run(check())


def test_readers_of_a_range_share_its_tables(published):
    async def check():
        first, second = await asyncio.gather(published.read(), published.read())
        assert all(one is other for one, other in zip(first, second, strict=True))
        made = len(published.made)
        assert all(one is other for one, other in zip(first, await published.read(), strict=True))
        assert len(published.made) == made
        assert (await published.read(columns=("value",)))[0] is not first[0]

    asyncio.run(check())


def test_what_an_unclean_election_has_replaced_is_not_read(published):
    async def check():
        await published.read()
        published.partition.resign()
        published.log.truncate_to(100)
        published.partition.become_leader(2)
        for _ in range(10):
            append(published.log, *[b"another"] * BATCH_RECORDS)
        published.partition.advance_high_watermark()
        values = [value for table in await published.read() for value in table.column("value").to_pylist()]
        assert values[99:] == [b"value 99", *[b"another"] * 100]

    asyncio.run(check())


def test_the_cache_is_bounded_in_bytes(published):
    async def check():
        await published.read()
        whole = published.cache.size
        published.max_bytes = whole // 2
        await published.read(1)
        assert 0 < published.cache.size <= whole // 2
        assert offsets(await published.read()) == list(range(COUNT))

    asyncio.run(check())


def test_tables_that_readers_hold_count_in_the_bound(published):
    async def check():
        held = await published.read()
        whole = published.cache.size
        published.max_bytes = whole
        published.lent = {published.key(table) for table in held}
        await published.read(1)
        assert published.cache.size < whole / 2
        published.lent = set()
        await published.read(2)
        assert whole / 2 < published.cache.size <= whole

    asyncio.run(check())


def test_the_topic_before_of_the_same_name_is_refused(published):
    async def check():
        arguments = (ORDERS, 0, 1, COLUMNS, IsolationLevel.READ_COMMITTED)
        assert await published.publish(*arguments, published.partition.topic_id)
        with pytest.raises(RaykaError) as refused:
            await published.publish(*arguments, uuid.uuid4())
        assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID

    asyncio.run(check())


def test_a_table_is_bounded_however_well_its_log_compresses(published):
    values = [b"x" * 100_000] * 10
    for _ in range(40):
        append(published.log, *values, codec=Codec.ZSTD)
    end = COUNT + 400

    async def check():
        published.max_bytes = 16 << 20
        assert offsets(await published.read(COUNT, end)) == list(range(COUNT, end))
        assert len(published.made) > 10
        assert max(table.nbytes for table in published.made) <= 3 << 20

    asyncio.run(check())


def test_unused_tables_expire(published):
    async def check():
        first = await published.read()
        published.now = TTL_S - 1
        await published.read(0, 1)
        published.now = TTL_S + 1
        await published.read(5, 6)
        again = await published.read()
        assert Counter(map(id, first)) != Counter(map(id, again))
        assert offsets(again) == list(range(COUNT))

    asyncio.run(check())


def test_records_that_are_not_there_are_refused(published):
    async def check():
        with pytest.raises(RaykaError) as refused:
            await published.read(COUNT + 1, END)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        published.partition.delete_records(50)
        with pytest.raises(RaykaError) as refused:
            await published.read()
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(RaykaError) as refused:
            await published.read(60, columns=("price",))
        assert refused.value.code is ErrorCode.INVALID_REQUEST

    asyncio.run(check())


def test_only_the_leader_publishes(published):
    async def check():
        published.partition.resign()
        with pytest.raises(RaykaError) as refused:
            await published.read()
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(RaykaError) as refused:
            await published.publish(TopicPartition("other", 0), 0, 1, COLUMNS, IsolationLevel.READ_COMMITTED)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(check())


def test_an_empty_range_makes_ready_and_publishes_nothing(published):
    async def check():
        assert await published.publish(TopicPartition("none", 0), 0, 0, (), IsolationLevel.READ_COMMITTED) == []
        assert published.made == []

    asyncio.run(check())


def test_nothing_is_read_beyond_the_high_watermark(published):
    async def check():
        published.log.append_as_leader(memoryview(batch(b"unseen")), 0, NOW_MS)
        assert offsets(await published.read(end=END)) == list(range(COUNT))

    asyncio.run(check())


def test_ranges_of_a_compacted_log_end_though_offsets_are_missing(published):
    published.log.roll(NOW_MS)
    published.log.flush()
    assert compact(published.log, NOW_MS, RealFiles()) is not None
    append(published.log, b"last")

    async def check():
        assert offsets(await published.read(end=COUNT + 1)) == [COUNT - 1, COUNT]
        for start, end in ((0, 1), (55, 66), (COUNT - 2, COUNT - 1)):
            (found,) = await published.publish(ORDERS, start, end, COLUMNS, IsolationLevel.READ_COMMITTED)
            assert (found.end_offset, found.ref.num_rows) == (end, 0)
        assert offsets(await published.read(77, COUNT)) == [COUNT - 1]

    asyncio.run(check())


def test_a_gap_that_compaction_left_leads_no_reader_into_an_open_transaction(published):
    """Kafka's cleaner may take the last batch of a segment. At its offset the batch after it is found."""
    log = published.log
    last = append(log, b"taken away")
    log.roll(NOW_MS)
    segment = log.segments[-2]
    segment.size -= len(batch(b"taken away"))
    verification = log.begin_verification(9, 0, 0, NOW_MS)
    undecided = batch(b"undecided", producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_as_leader(undecided, 0, NOW_MS, verification=verification)
    log.update_high_watermark(log.log_end_offset)

    async def check():
        assert offsets(await published.read(last, END)) == []
        (tail,) = await published.publish(ORDERS, last, last + 1, COLUMNS, IsolationLevel.READ_COMMITTED)
        assert (tail.end_offset, tail.ref.num_rows) == (last + 1, 0)
        assert offsets(await published.read(last, END, isolation=IsolationLevel.READ_UNCOMMITTED)) == [last + 1]

    asyncio.run(check())


@pytest.mark.parametrize(
    ("position", "damage"),
    [*((0, struct.pack(">q", base_offset)) for base_offset in (2**40, 0, 131)), (8, b"\x01"), (23, b"\x80")],
)
def test_after_damage_to_a_header_no_record_is_left_out_moved_or_read_twice(published, position, damage):
    """CRCs do not cover the base offset and the length of a batch."""
    segment = next(each for each in published.log.segments if each.base_offset == 120)
    with open(segment.path, "r+b") as file:
        file.seek(segment.size // 3 + position)  # the batch of the offsets 130 to 139
        file.write(damage)
    read = []

    async def check():
        start = 110
        while start < COUNT:
            (found, *_) = await published.publish(ORDERS, start, COUNT, COLUMNS, IsolationLevel.READ_COMMITTED)
            read.extend(offsets([found.ref]))
            start = found.end_offset

    with pytest.raises(RaykaError) as failure:
        asyncio.run(check())
    assert failure.value.code is ErrorCode.CORRUPT_MESSAGE
    assert read == list(range(110, 110 + len(read)))
    assert len(read) <= 20
