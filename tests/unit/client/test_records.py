"""What a consumer makes of the bytes of a fetch answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.client.consumer.completed_fetch import CompletedFetch
from rayka.client.consumer.located import locate_batches
from rayka.client.consumer.records import ConsumerRecord
from rayka.client.consumer.tables import table_of
from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import iter_headers, read_header, seal, stamp
from rayka.storage.format.compression import Codec
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Headers, Record, build_batch, read_batch
from rayka.types import AbortedTransaction, TimestampType, TopicPartition
from tests.support.batches import rebuild_batch
from tests.support.ways import WAYS_TO_DECODE, decode_by

EVENTS = TopicPartition("events", 3)


@pytest.fixture(scope="module", params=WAYS_TO_DECODE, autouse=True)
def way_to_decode(request: pytest.FixtureRequest) -> Iterator[None]:
    """A consumer begins with plain Python and goes on with compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        decode_by(request.param, patch)
        yield


def batch(base_offset: int, count: int, producer_id: int = -1) -> bytes:
    """A batch of numbered records, of a transaction if there is a producer."""
    records = [Record(0, 1000 + number, None, b"%d" % (base_offset + number)) for number in range(count)]
    epoch, is_transactional = (0, True) if producer_id >= 0 else (-1, False)
    return bytes(
        build_batch(
            records,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0 if is_transactional else -1,
            is_transactional=is_transactional,
        )
    )


def marker(offset: int, producer_id: int, control_type: ControlType) -> bytes:
    """The end of a transaction."""
    return bytes(
        build_end_transaction_marker(
            control_type, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, now_ms=0, base_offset=offset
        )
    )


def offsets(data: bytes, fetch_offset: int = 0, aborted: tuple[AbortedTransaction, ...] | None = None) -> list[int]:
    """The offsets of the records that a reader gets."""
    chunk = CompletedFetch(EVENTS, fetch_offset, data, aborted, ConsumerConfig())
    taken: list[ConsumerRecord] = []
    while records := chunk.take(3):
        taken += records
    return [record.offset for record in taken]


def test_a_fetch_in_the_middle_of_a_batch() -> None:
    assert offsets(batch(10, 5) + batch(15, 2), fetch_offset=13) == [13, 14, 15, 16]


def test_a_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    data = batch(0, 5) + batch(5, 5)
    for cut in (1, 30, 70):
        chunk = CompletedFetch(EVENTS, 0, data[:-cut], None, ConsumerConfig())
        assert chunk.next_offset == 5
        assert len(chunk.batches.data) == len(batch(0, 5))
        assert offsets(data[:-cut]) == [0, 1, 2, 3, 4]


def test_a_first_batch_that_is_truncated_is_an_error() -> None:
    with pytest.raises(RaykaError, match="the batch at offset 7 of events-3 is larger than max_partition_fetch_bytes"):
        offsets(batch(7, 5)[:-1], fetch_offset=7)


@pytest.mark.parametrize(("place", "byte"), [(16, 7), (8, 0xFF)])
def test_batches_before_one_that_is_none_are_read(place: int, byte: int) -> None:
    damaged = bytearray(batch(5, 5))
    damaged[place] = byte  # the magic, or the length
    assert offsets(batch(0, 5) + bytes(damaged)) == [0, 1, 2, 3, 4]
    assert CompletedFetch(EVENTS, 0, batch(0, 5) + bytes(damaged), None, ConsumerConfig()).next_offset == 5
    with pytest.raises(RaykaError):
        offsets(bytes(damaged), fetch_offset=5)


@pytest.mark.parametrize(("moved_to", "sound"), [(14, 10), (2**40, 10), (6, 5), (0, 10), (-(2**63), 10)])
def test_batches_before_two_that_are_not_in_order_are_read(moved_to: int, sound: int) -> None:
    """No CRC covers the offset of a batch: a flipped bit of it made a consumer go back, or over other records.

    The batch before one whose offset went down is sound, as the one before it shows; but with the offset 6, the moved
    one could be read from offset 10 on.
    """
    moved = bytearray(batch(10, 10))
    stamp(moved, 0, moved_to, 0)
    batches = [batch(0, 5), batch(5, 5), bytes(moved), batch(20, 5)]
    data = b"".join(batches)
    assert offsets(data) == [*range(sound)]
    assert CompletedFetch(EVENTS, 0, data, None, ConsumerConfig()).next_offset == sound
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE.*is not in order"):
        offsets(b"".join(batches[sound // 5 :]), fetch_offset=sound)


def test_a_batch_that_says_it_is_longer_is_not_in_order() -> None:
    longer = bytearray(batch(5, 5))
    longer[26] = 16  # the last offset delta
    chunk = CompletedFetch(EVENTS, 0, batch(0, 5) + bytes(longer) + batch(10, 5), None, ConsumerConfig())
    assert chunk.next_offset == 5


def test_batches_before_one_that_is_behind_the_end_are_read() -> None:
    moved = bytearray(batch(5, 5))
    stamp(moved, 0, 2**40, 0)
    data = batch(0, 5) + bytes(moved)
    assert CompletedFetch(EVENTS, 0, data, None, ConsumerConfig(), end_offset=10).next_offset == 5
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE.*is not in order"):
        CompletedFetch(EVENTS, 5, bytes(moved), None, ConsumerConfig(), end_offset=10)
    assert CompletedFetch(EVENTS, 0, batch(0, 5) + batch(5, 5), None, ConsumerConfig(), end_offset=10).next_offset == 10


@pytest.mark.parametrize(("place", "bit"), [(22, 0x20), (23, 0x80), (50, 1)], ids=["control", "delta", "producer"])
def test_records_are_not_left_out_because_of_a_damaged_header(place: int, bit: int) -> None:
    """As those of a control batch, of another producer's aborted transaction, or before the position."""
    batches = [batch(0, 5, producer_id=6), bytearray(batch(5, 5, producer_id=6)), batch(10, 5, producer_id=6)]
    batches[1][place] ^= bit
    aborted = (AbortedTransaction(7, 0),)
    assert offsets(b"".join(batches), aborted=aborted) == [0, 1, 2, 3, 4]
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        offsets(b"".join(batches[1:]), fetch_offset=5, aborted=aborted)


def test_a_batch_before_the_offset_that_was_fetched_is_refused() -> None:
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE.*is not in order"):
        offsets(batch(0, 5), fetch_offset=5)


def test_large_batches_for_a_table_are_checked_when_they_were_read() -> None:
    large = [Record(0, 1000, None, bytes(20_000))]
    data = bytearray(build_batch(large) + build_batch(large, base_offset=1))

    def are_intact(**config: bool) -> bool:
        return CompletedFetch(EVENTS, 0, data, None, ConsumerConfig(**config), is_for_table=True).batches.are_intact

    assert are_intact()
    assert not are_intact(check_crcs=False)
    data[-1] ^= 1
    assert not are_intact()
    with pytest.raises(RaykaError) as raised:
        offsets(bytes(data))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_control_batches_are_never_seen() -> None:
    data = batch(0, 2, producer_id=1) + marker(2, 1, ControlType.COMMIT) + batch(3, 1)
    assert offsets(data) == offsets(data, aborted=()) == [0, 1, 3]
    assert CompletedFetch(EVENTS, 0, data[: -len(batch(3, 1))], None, ConsumerConfig()).next_offset == 3


def test_aborted_transactions_are_left_out_under_read_committed() -> None:
    data = b"".join(
        (
            batch(0, 2, producer_id=1),
            batch(2, 2, producer_id=2),
            batch(4, 1),
            marker(5, 1, ControlType.ABORT),
            batch(6, 1, producer_id=1),
            marker(7, 2, ControlType.COMMIT),
            marker(8, 1, ControlType.COMMIT),
        )
    )
    assert offsets(data, aborted=(AbortedTransaction(1, 0),)) == [2, 3, 4, 6]
    assert offsets(data, aborted=None) == [0, 1, 2, 3, 4, 6]


def test_gaps_left_by_compaction_are_skipped() -> None:
    whole = batch(0, 10)
    kept = [Record(offset, 1000, None, b"") for offset in (2, 5)]
    data = bytes(rebuild_batch(read_header(whole), kept))
    assert offsets(data) == [2, 5]
    assert offsets(data, fetch_offset=3) == [5]
    assert CompletedFetch(EVENTS, 0, data, None, ConsumerConfig()).next_offset == 10


@pytest.mark.parametrize("deltas", [[-1, 0, 1], [0, 1, 3], [0, 0, 1], [1, 0, 2], [0, 2, 2], [3], [-5], [2, 1], [2**31]])
@pytest.mark.parametrize("fetch_offset", [7, 8])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_that_are_not_in_order_within_their_batch_are_refused(
    deltas: list[int], fetch_offset: int, codec: Codec
) -> None:
    """A right CRC, from a hostile client or another broker: a reader's position would go back, or over other records.

    Kafka's consumer leaves out records below its position, and one beyond its batch makes it leave out those that
    follow up to there. Here iteration and tables refuse such a batch, as one that is malformed in another way.
    """
    header = read_header(build_batch([Record(0, 1000, None, b"")] * 3, base_offset=7, codec=codec))
    hostile = bytes(rebuild_batch(header, [Record(7 + delta, 1000, None, b"v") for delta in deltas]))
    with pytest.raises(RaykaError) as refused:
        offsets(hostile + batch(10, 2), fetch_offset)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    for columns in (None, ("value",), ("offset", "headers")):
        fetched = CompletedFetch(EVENTS, fetch_offset, hostile + batch(10, 2), None, ConsumerConfig())
        with pytest.raises(RaykaError) as refused:
            table_of({EVENTS: [fetched.batches]}, columns, check_crcs=True)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(batch(0, 5))
    data[-1] ^= 1
    with pytest.raises(RaykaError) as caught:
        offsets(bytes(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


SIZES = st.sampled_from([0, 1, 63, 64, 100, 8170, 8191, 8192, 9000, 70_000])
CONTENT = st.none() | SIZES.map(lambda size: b"x" * size) | st.binary(max_size=80)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
TIMES = st.integers(0, 60) | st.sampled_from([0, 8191, 8192, 16_383, 16_384, 2**40])


@given(
    st.lists(st.tuples(TIMES, CONTENT, CONTENT, st.just(()) | HEADERS), min_size=1, max_size=6),
    st.sampled_from([0, 63, 8190, 2**40]),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
    st.sampled_from(TimestampType),
)
def test_any_records_come_out_as_they_went_in(
    fields: list[tuple[int, bytes | None, bytes | None, Headers]],
    base_offset: int,
    codec: Codec,
    timestamp_type: TimestampType,
) -> None:
    records = [Record(0, 10**12 - time, key, value, headers) for time, key, value, headers in fields]
    data = bytes(build_batch(records, base_offset=base_offset, codec=codec, timestamp_type=timestamp_type))
    chunk = CompletedFetch(EVENTS, base_offset, data, None, ConsumerConfig())
    taken = chunk.take(100)
    assert [(record.key, record.value, record.headers) for record in taken] == [tuple(one[1:]) for one in fields]
    assert [record.offset for record in taken] == [*range(base_offset, base_offset + len(fields))]
    assert {record.timestamp_type for record in taken} == {timestamp_type}
    if timestamp_type is TimestampType.CREATE_TIME:
        assert [record.timestamp for record in taken] == [10**12 - one[0] for one in fields]


def test_offsets_far_into_a_large_batch() -> None:
    count = 20_000
    data = bytes(build_batch([Record(0, 0, None, b"")] * count, base_offset=7))
    assert offsets(data) == [*range(7, 7 + count)]


@given(st.integers(0, 200), st.integers(0, 255))
def test_damaged_records_are_never_taken_for_others(place: int, byte: int) -> None:
    """Without the CRC: what is read is what the slow and careful reader gives, or its error."""
    data = bytearray(build_batch([Record(0, 5, b"k" * 70, b"v" * 70), Record(0, 9, None, b"")]))
    data[61 + place % (len(data) - 61)] = byte
    header = read_header(data)
    try:
        expected = [(one.offset, one.timestamp, one.key, one.value) for one in read_batch(data, 0, header)]
    except RaykaError:
        expected = None
    try:
        taken = CompletedFetch(EVENTS, 0, bytes(data), None, ConsumerConfig(check_crcs=False)).take(10)
    except RaykaError:
        assert expected is None
    else:
        assert [(one.offset, one.timestamp, one.key, one.value) for one in taken] == expected


def test_batches_that_unpack_to_too_much_are_not_unpacked_together() -> None:
    big = [
        bytes(build_batch([Record(0, 1000, None, bytes(24 << 20))], base_offset=offset, codec=Codec.ZSTD))
        for offset in range(3)
    ]
    data = memoryview(b"".join(big))
    with pytest.raises(RaykaError) as raised:
        locate_batches(data, list(iter_headers(data)), 0, EVENTS, True)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    fetch = CompletedFetch(EVENTS, 0, bytes(data), None, ConsumerConfig())
    assert [record.offset for record in fetch.take(10)] == [0, 1, 2]


def test_records_are_not_decoded_before_somebody_looks() -> None:
    data = bytearray(batch(0, 5) + batch(5, 5))
    data[len(batch(0, 5)) + 61] ^= 0x40  # the length of the sixth record
    seal(data, len(batch(0, 5)), len(data))
    taken = CompletedFetch(EVENTS, 2, bytes(data), None, ConsumerConfig()).take(100)
    assert (len(taken), taken.first_offset, taken.last_offset) == (8, 2, 9)
    assert [record.offset for record in taken[:3]] == [2, 3, 4]
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        list(taken)
