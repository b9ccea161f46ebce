"""The options and columns of a write are those of Spark's Kafka sink."""

from __future__ import annotations

import pytest

from rayka.errors import RaykaError
from rayka.spark.source.write_options import SinkOptions, parse_sink_options, require_columns


def test_options_of_the_sink():
    assert parse_sink_options({}) == SinkOptions()
    options = {"TOPIC": "pages", "kafka.bootstrap.servers": "a:1", "kafka.compression.type": "LZ4", "kafka.acks": "all"}
    assert parse_sink_options(options) == SinkOptions("pages", "a:1", "lz4")
    assert parse_sink_options({"checkpointLocation": "/tmp/x", "kafka.request.timeout.ms": "5"}).timeout_ms == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.acks": "1"}, "kafka.acks='1' is not valid: use all"),
        ({"kafka.compression.type": "rar"}, "use none or gzip"),
        ({"kafka.request.timeout.ms": "soon"}, "use a number from 1"),
        ({"kafka.request.timeout.ms": "²"}, "use a number from 1"),
        ({"kafka.transactional.id": "t"}, "kafka.transactional.id is not supported"),
        ({"kafka.security.protocol": "SASL_SSL"}, "use plaintext"),
    ],
)
def test_options_that_are_not_supported_are_refused_by_name(options, words):
    with pytest.raises(RaykaError, match=words):
        parse_sink_options(options)


def test_columns_of_a_record_are_written():
    headers = "array<struct<key:string,value:binary>>"
    require_columns(
        {"value": "string", "key": "binary", "topic": "string", "partition": "int", "headers": headers}, None
    )
    require_columns({"value": "binary"}, "pages")


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        ({"value": "string"}, None, "Give the option topic, or a column topic"),
        ({"key": "string"}, "pages", "no column value"),
        ({"value": "int"}, "pages", "Column value has type int; use binary or string"),
        ({"value": "string", "price": "int"}, "pages", "Column price can't be written"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(columns, topic, words):
    with pytest.raises(RaykaError, match=words):
        require_columns(columns, topic)
