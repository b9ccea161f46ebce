"""Responses of a broker, as the blocking client reads them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v13.response import FetchableTopicResponse, FetchResponse, PartitionData

from rayka.client.kafka.connection import ResponseReader
from rayka.gateway.wire.codec import entity_reader, entity_writer
from rayka.gateway.wire.reader import FrameReader, MalformedFrame
from rayka.ranges.plan import NO_TOPIC_ID


def fetch_response(records):
    """A frame with a response that has these records of one partition."""
    partition = PartitionData(
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=5,
        last_stable_offset=5,
        log_start_offset=0,
        aborted_transactions=(),
        records=records,
    )
    topic = FetchableTopicResponse(topic_id=NO_TOPIC_ID, partitions=(partition,))
    frame = bytearray()
    response = FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=(topic,))
    entity_writer(FetchResponse)(frame, response)
    return memoryview(frame).toreadonly()


def read_records(reader):
    return entity_reader(FetchResponse)(reader).responses[0].partitions[0].records


def test_records_stay_where_they_were_received():
    frame = fetch_response(b"batches")
    records = read_records(ResponseReader(frame, 0))
    assert bytes(records) == b"batches"
    assert records.obj is frame.obj
    assert read_records(FrameReader(frame, 0)) == b"batches"


def test_no_records_are_none():
    assert read_records(ResponseReader(fetch_response(None), 0)) is None


def test_records_beyond_the_frame_are_malformed():
    frame = fetch_response(b"batches")
    begin = bytes(frame).index(b"batches")
    with pytest.raises(MalformedFrame):
        read_records(ResponseReader(frame[: begin + 3], 0))
