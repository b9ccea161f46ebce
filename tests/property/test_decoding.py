"""Plain Python and compiled code decode the same records of a batch, or refuse it both, however malformed it is.

A consumer begins with the one and goes on with the other, so nobody must notice.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.client.consumer.decoding import decode_batch
from rayka.client.consumer.located import locate_batches
from rayka.client.consumer.records import ConsumerRecord
from rayka.errors import RaykaError
from rayka.storage.format.batch import HEADER, RECORD_BATCH_OVERHEAD, iter_headers, read_header, seal
from rayka.storage.format.records import build_batch
from rayka.types import TimestampType, TopicPartition
from tests.property.record_strategies import CODECS, record_lists
from tests.support.scale import examples

EVENTS = TopicPartition("events", 0)
LIMIT = 2**63
BYTES = st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)) | st.integers(0, 255)
LONG_VARINTS = st.tuples(st.integers(1, 12), st.integers(0, 127), st.sampled_from((0x80, 0xFF)))
EDGES = st.sampled_from((0, 10, LIMIT - 1, LIMIT - 3, -LIMIT, 2**62, 2**40))


@st.composite
def malformed_batches(draw: st.DrawFn) -> bytes:
    """A batch with a right CRC, of which a part was changed, put in or cut off, and the numbers of its header too."""
    records = draw(record_lists(min_size=1, max_size=5))
    built = build_batch(records, base_offset=10, timestamp_type=draw(st.sampled_from(list(TimestampType))))
    places = st.integers(RECORD_BATCH_OVERHEAD, len(built) - 1)
    for place in draw(st.lists(places, max_size=2)):
        built[place] = draw(BYTES)
    match draw(st.integers(0, 3)):
        case 0:
            size, last, byte = draw(LONG_VARINTS)
            place = draw(places)
            built[place:place] = bytes([byte] * size + [last])
        case 1:
            del built[draw(places) :]
    changes: dict[str, Any] = {"batch_length": len(built) - 12}
    header = read_header(built)
    if draw(st.booleans()):
        changes |= {"base_timestamp": draw(EDGES), "max_timestamp": draw(EDGES), "base_offset": max(draw(EDGES), 0)}
        changes["record_count"] = header.record_count + draw(st.sampled_from((0, 0, -1, 1, -header.record_count - 1)))
    HEADER.pack_into(built, 0, *header._replace(**changes))
    seal(built, 0, len(built))
    return bytes(built)


@settings(max_examples=examples(1000))
@given(malformed_batches(), st.integers(-1, 6))
def test_both_ways_agree(batch: bytes, skipped: int) -> None:
    data = memoryview(batch)
    (positioned,) = iter_headers(data)
    position = min(max(positioned[1].base_offset + skipped, 0), LIMIT - 1)
    compiled: list[ConsumerRecord] | None = []
    try:
        located = locate_batches(data, [positioned], position, EVENTS, True)
        while len(compiled) < len(located):
            compiled += located.records(len(compiled), len(located))
    except RaykaError:
        compiled = None
    try:
        plain = decode_batch(data, positioned, position, EVENTS, True)
    except RaykaError:
        assert compiled is None
    else:
        assert list(plain) == compiled


@settings(max_examples=examples(100))
@given(record_lists(min_size=1), CODECS, st.integers(0, 12))
def test_sound_batches_are_decoded_from_any_offset_on(records: list[Any], codec: Any, position: int) -> None:
    data = memoryview(build_batch(records, codec=codec))
    (positioned,) = iter_headers(data)
    decoded = decode_batch(data, positioned, position, EVENTS, True)
    expected = [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in records[position:]]
    assert [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in decoded] == expected
