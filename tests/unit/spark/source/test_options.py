"""The options of the source are those of Spark's Kafka source, and what is not supported is refused by name."""

from __future__ import annotations

import json

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import Timestamp
from rayka.spark.source.options import SourceOptions, TopicChoice, parse_options
from rayka.types import IsolationLevel


def batch(**options):
    return parse_options({"subscribe": "clicks", **options}, "batch")


def streaming(**options):
    return parse_options({"subscribe": "clicks", **options}, "streaming")


def refused(query, options, words):
    with pytest.raises(RaykaError, match=words) as error:
        parse_options(options, query)
    assert error.value.code is ErrorCode.INVALID_REQUEST


def test_defaults_are_those_of_sparks_kafka_source():
    assert batch() == SourceOptions(TopicChoice(topics=("clicks",)), starting="earliest", ending="latest")
    assert streaming() == SourceOptions(TopicChoice(topics=("clicks",)), starting="latest")
    assert batch().isolation is IsolationLevel.READ_UNCOMMITTED
    assert batch().fail_on_data_loss
    assert not batch().include_headers


def test_topics_are_chosen_by_name_pattern_or_partition():
    assert batch(subscribe="a, b,a").choice == TopicChoice(topics=("a", "b"))
    assert parse_options({"subscribePattern": "click.*"}, "batch").choice == TopicChoice(pattern="click.*")
    assigned = parse_options({"assign": '{"a": [0, 2], "b": [1]}'}, "streaming").choice
    assert assigned == TopicChoice(assigned={"a": (0, 2), "b": (1,)})


def test_names_and_words_do_not_depend_on_case():
    options = batch(STARTINGOFFSETS="Earliest", failondataloss="FALSE", IncludeHeaders="True")
    assert (options.starting, options.fail_on_data_loss, options.include_headers) == ("earliest", False, True)


def test_offsets_are_given_for_each_partition():
    text = json.dumps({"clicks": {"0": 23, "1": -2}})
    assert batch(startingOffsets=text).starting == {"clicks": {0: 23, 1: -2}}
    assert streaming(startingOffsets='{"clicks": {"0": -1}}').starting == {"clicks": {0: -1}}
    assert batch(endingOffsets='{"clicks": {"0": 50, "1": -1}}').ending == {"clicks": {0: 50, 1: -1}}


def test_timestamps_take_precedence_over_offsets_and_must_match_a_record_by_default():
    by_time = '{"clicks": {"0": 1000}}'
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": by_time}
    assert batch(**both).starting == {"clicks": {0: Timestamp(1000, required=True)}}
    assert batch(startingTimestamp="5", **both).starting == Timestamp(5, required=True)
    assert batch(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").starting == Timestamp(5)
    assert batch(endingTimestamp="9", endingOffsets="latest").ending == Timestamp(9)
    assert batch(endingOffsetsByTimestamp=by_time).ending == {"clicks": {0: Timestamp(1000)}}


def test_numbers_and_kafka_settings():
    options = streaming(
        maxOffsetsPerTrigger="1000",
        minPartitions="16",
        maxRecordsPerPartition="50",
        **{
            "kafka.bootstrap.servers": "a:1,b:2",
            "kafka.isolation.level": "read_committed",
            "kafka.request.timeout.ms": "5000",
            "kafka.max.partition.fetch.bytes": "65536",
            "kafka.security.protocol": "PLAINTEXT",
        },
    )
    assert (options.max_offsets_per_trigger, options.min_partitions, options.max_records_per_partition) == (
        1000,
        16,
        50,
    )
    assert (options.bootstrap_servers, options.timeout_ms, options.fetch_bytes) == ("a:1,b:2", 5000, 65536)
    assert options.isolation is IsolationLevel.READ_COMMITTED


def test_waiting_and_retries():
    assert streaming(maxTriggerDelay="0s").max_trigger_delay_s == 0
    waiting = streaming(minOffsetsPerTrigger="50", maxTriggerDelay="2 min")
    assert (waiting.min_offsets_per_trigger, waiting.max_trigger_delay_s) == (50, 120.0)
    assert streaming().max_trigger_delay_s == 15 * 60
    retried = batch(**{"fetchOffset.numRetries": "0", "fetchOffset.retryIntervalMs": "10"})
    assert (retried.offset_retries, retried.retry_interval_ms) == (0, 10)
    assert batch(**{"kafka.request.timeout.ms": "7"}).poll_timeout_ms == 7
    assert batch(**{"kafka.request.timeout.ms": "7", "kafkaConsumer.pollTimeoutMs": "9"}).poll_timeout_ms == 9


@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        ("batch", {}, "exactly one of the options assign, subscribe, subscribePattern; given: none"),
        ("batch", {"subscribe": "a", "assign": "{}"}, "given: assign, subscribe"),
        ("batch", {"subscribe": " "}, "subscribe is empty"),
        ("batch", {"subscribe": " , "}, "subscribe=',' is not valid: it names no topic"),
        ("batch", {"assign": "[1]"}, "assign="),
        ("batch", {"assign": "{}"}, "assign='{}' is not valid: it names no partition"),
        ("streaming", {"assign": '{"a": []}'}, "it names no partition"),
        ("batch", {"subscribe": "a", "startingOffsets": "latest"}, "can't be the latest in a batch query"),
        ("batch", {"subscribe": "a", "startingOffsets": '{"a": {"0": -1}}'}, "can't be the latest in a batch query"),
        ("batch", {"subscribe": "a", "startingOffsets": "soon"}, "startingOffsets='soon' is not valid"),
        ("batch", {"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-3 is neither an offset"),
        ("batch", {"subscribe": "a", "startingOffsets": '{"a": {"0": 1.5}}'}, "1.5 is not a whole number"),
        ("batch", {"subscribe": "a", "endingOffsets": "earliest"}, "can't be the earliest"),
        ("batch", {"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "can't be the earliest"),
        ("batch", {"subscribe": "a", "startingTimestamp": "noon"}, "use milliseconds since 1970"),
        ("batch", {"subscribe": "a", "startingTimestamp": "²"}, "use milliseconds since 1970"),
        ("batch", {"subscribe": "a", "minPartitions": "²"}, "use a number from 1"),
        (
            "batch",
            {"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'},
            "-1 is not milliseconds since 1970",
        ),
        ("batch", {"subscribe": "a", "minPartitions": "0"}, "use a number from 1"),
        ("batch", {"subscribe": "a", "kafka.max.partition.fetch.bytes": "2147483648"}, "a number from 1 to 2147483647"),
        ("batch", {"subscribe": "a", "failOnDataLoss": "maybe"}, "use true or false"),
        ("batch", {"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "it is one of streaming queries only"),
        ("streaming", {"subscribe": "a", "endingOffsets": "latest"}, "it is one of batch queries only"),
        ("batch", {"subscribe": "a", "minOffsetsPerTrigger": "5"}, "it is one of streaming queries only"),
        (
            "streaming",
            {"subscribe": "a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger=5 is more than maxOffsetsPerTrigger=4",
        ),
        ("streaming", {"subscribe": "a", "maxTriggerDelay": "15 weeks"}, "use a time such as 15m"),
        ("streaming", {"subscribe": "a", "fetchOffset.numRetries": "-1"}, "use a number from 0"),
        ("batch", {"subscribe": "a", "kafka.group.id": "g"}, "kafka.group.id is not supported: no consumer group"),
        ("batch", {"subscribe": "a", "groupIdPrefix": "g"}, "groupIdPrefix is not supported: no consumer group"),
        ("batch", {"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "startingOffsets says where"),
        ("batch", {"subscribe": "a", "kafka.value.deserializer": "x"}, "values are read as bytes"),
        ("batch", {"subscribe": "a", "kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.mechanism is not supported"),
        ("batch", {"subscribe": "a", "kafka.security.protocol": "SSL"}, "use PLAINTEXT"),
    ],
)
def test_what_is_not_supported_or_not_valid_is_refused_by_name(query, options, words):
    refused(query, options, words)
