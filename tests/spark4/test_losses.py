"""Records that are gone before a streaming query has read them: never passed over silently, never read twice.

Spark asks the reader for offsets and gives them back from its checkpoint; these tests do the same without a query.
"""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rayka.client.kafka.cluster import KafkaCluster
from rayka.errors import ErrorCode, RaykaError
from rayka.spark.source import fetcher, stream
from rayka.spark.source.source import RaykaSource
from rayka.testing import wait_until
from tests.spark4.reading import PLACES, fill

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch):
    monkeypatch.setattr(stream, "_PATIENCE_S", 1.0)


@pytest.fixture
def query(cluster, topic):
    """`query(**options)`: the reader of a stream over the topic, as Spark makes it anew with each start."""

    def make(**options):
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "startingOffsets": "earliest"}
        if "subscribePattern" not in options:
            given["subscribe"] = topic
        return RaykaSource({**given, **options}).streamReader(PLACES)

    return make


def read(reader, start, end):
    """Partition and offset of each row of a batch; offsets go through JSON as in a checkpoint."""
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    batches = [batch for split in reader.partitions(start, end) for batch in reader.read(split)]
    return sorted((row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist())


def places(partition, *bounds):
    return [(partition, offset) for offset in range(*bounds)]


def moved(offset, topic, partition, end):
    """A checkpoint that has got further in a partition than its log, which a crash of the machine has cut."""
    changed = json.loads(json.dumps(offset))
    changed[topic]["end"][partition] = end
    return changed


def test_partitions_that_are_added_are_read_from_their_beginning(cluster, topic, query):
    fill(cluster, topic, 30)
    first = query().latestOffset(query().initialOffset(), ALL)
    cluster.admin().create_partitions({topic: 4})
    fill(cluster, topic, 40, start=30, partitions=4)
    second = query(startingOffsets="latest").latestOffset(first, ALL)
    assert {place for place in read(query(), first, second) if place[0] == 3} == set(places(3, 10))
    assert len(read(query(), first, second)) == 40


def test_the_lost_beginning_of_a_new_partition_fails_the_stream_unless_that_is_allowed(cluster, topic, query):
    fill(cluster, topic, 30)
    first = query().latestOffset(query().initialOffset(), ALL)
    cluster.admin().create_partitions({topic: 4})
    fill(cluster, topic, 40, start=30, partitions=4)
    cluster.admin().delete_records({(topic, 3): 4})
    with pytest.raises(RaykaError, match=r"offsets 0 to 3 of this new partition were deleted"):
        query().latestOffset(first, ALL)
    allowing = query(failOnDataLoss="false")
    assert places(3, 4, 10) == read(allowing, first, allowing.latestOffset(first, ALL))[-6:]


def test_a_log_that_ends_before_what_was_read_fails_the_stream_unless_that_is_allowed(cluster, topic, query):
    fill(cluster, topic, 30)
    last = moved(query().latestOffset(query().initialOffset(), ALL), topic, "0", 15)
    with pytest.raises(RaykaError, match="the log ends at offset 10, and had been read up to offset 15"):
        query().latestOffset(last, ALL)
    allowing = query(failOnDataLoss="false")
    reset = allowing.latestOffset(last, ALL)
    assert reset != last, "Spark would not keep where the query goes on"
    assert read(allowing, last, reset) == []
    assert allowing.latestOffset(reset, ALL) == reset
    fill(cluster, topic, 9, start=30)
    after = allowing.latestOffset(reset, ALL)
    assert read(allowing, reset, after) == [place for number in range(3) for place in places(number, 10, 13)]


def test_a_planned_batch_whose_end_is_gone_does_not_stop_the_stream_for_ever(cluster, topic, query):
    fill(cluster, topic, 30)
    start = query().initialOffset()
    planned = moved(query().latestOffset(start, ALL), topic, "0", 15)
    quick = {"kafka.request.timeout.ms": "3000"}
    with pytest.raises(RaykaError, match="the log ends before these offsets") as failed:
        read(query(**quick), start, planned)
    assert failed.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(read(query(failOnDataLoss="false", **quick), start, planned)) == 30


@pytest.mark.parametrize("chosen", ["subscribe", "subscribePattern"])
def test_a_deleted_topic_fails_the_stream_unless_that_is_allowed(
    cluster, topic, other_topic, query, chosen, monkeypatch
):
    monkeypatch.setattr(stream, "_PATIENCE_S", 3.0)  # the broker lists a topic for a moment after its leader has ended
    fill(cluster, topic, 30)
    fill(cluster, other_topic, 30)
    names = {"subscribe": f"{topic},{other_topic}", "subscribePattern": f"{topic}|{other_topic}"}
    options = {chosen: names[chosen]}
    first = query(**options).latestOffset(query(**options).initialOffset(), ALL)
    cluster.admin().delete_topic(other_topic)
    broker = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    wait_until(lambda: other_topic not in broker.list_topics(timeout=60).topics, 60, "the topic is listed no more")
    fill(cluster, topic, 3, start=30)
    with pytest.raises(RaykaError, match=r"the partition was deleted; it had been read up to offset 10"):
        query(**options).latestOffset(first, ALL)
    allowing = query(failOnDataLoss="false", **options)
    second = allowing.latestOffset(first, ALL)
    assert len(read(allowing, first, second)) == 3
    assert set(second) == ({topic, other_topic} if chosen == "subscribe" else {topic})
    assert allowing.latestOffset(second, ALL) == second
    fill(cluster, topic, 3, start=33)
    assert len(read(allowing, second, allowing.latestOffset(second, ALL))) == 3


def test_a_topic_that_never_was_there_fails_the_stream(cluster, topic, query):
    fill(cluster, topic, 3)
    first = query().initialOffset()
    for allowed in ("true", "false"):
        reader = query(subscribe=f"{topic},misspelled", failOnDataLoss=allowed)
        for ask in (reader.initialOffset, lambda reader=reader: reader.latestOffset(first, ALL)):
            with pytest.raises(RaykaError, match="misspelled does not exist"):
                ask()


def test_a_stream_that_begins_at_offsets_which_are_gone_goes_on_if_that_is_allowed(cluster, topic, query):
    fill(cluster, topic, 30)
    cluster.admin().delete_records({(topic, 0): 4})
    options = {"startingOffsets": json.dumps({topic: {"0": 0, "1": 0, "2": 0}})}
    with pytest.raises(RaykaError, match="has no offset 0"):
        query(**options).initialOffset()
    allowing = query(failOnDataLoss="false", **options)
    start = allowing.initialOffset()
    assert len(read(allowing, start, allowing.latestOffset(start, ALL))) == 26


def test_a_broker_that_has_not_heard_of_the_topic_yet_loses_nothing(cluster, topic, query, monkeypatch):
    fill(cluster, topic, 30)
    reader = query(failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    metadata, unknown = KafkaCluster.metadata, []

    def late(self, topics=(), **options):
        if len(unknown) < 3:
            unknown.append(topics)
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not known yet")
        return metadata(self, topics, **options)

    monkeypatch.setattr(KafkaCluster, "metadata", late)
    monkeypatch.setattr(fetcher, "_connections", fetcher._Connections())
    assert len(read(reader, start, end)) == 30
    assert len(unknown) == 3
    unknown.clear()
    assert reader.latestOffset(end, ALL) == end


def test_retention_that_overtakes_a_batch_fails_it_unless_that_is_allowed(cluster, topic, query):
    fill(cluster, topic, 30)
    start = query().initialOffset()
    planned = query().latestOffset(start, ALL)
    cluster.admin().delete_records({(topic, 1): 6})
    with pytest.raises(RaykaError, match="the records were deleted before they were read"):
        read(query(), start, planned)
    expected = [*places(0, 10), *places(1, 6, 10), *places(2, 10)]
    assert read(query(failOnDataLoss="false"), start, planned) == expected


def test_records_of_transactions_come_once_they_are_committed_and_never_if_aborted(cluster, topic, query):
    committed = {"kafka.isolation.level": "read_committed"}
    reader = query(**committed)
    start = reader.initialOffset()
    for outcome in ("commit", "abort", "commit"):
        transact(cluster, topic, outcome)
    open_one = transact(cluster, topic, None)
    first = reader.latestOffset(start, ALL)
    assert len(read(reader, start, first)) == 2 * 60
    for piece in (1, 7, 50):  # a batch that begins in the middle of a transaction
        assert len(in_pieces(reader, start, piece)) == 2 * 60
    assert len(read(query(), start, query().latestOffset(start, ALL))) == 4 * 60
    open_one.commit_transaction()
    second = reader.latestOffset(first, ALL)
    assert len(read(reader, first, second)) == 60


def in_pieces(reader, start, size):
    rows = []
    while (end := reader.latestOffset(start, ReadMaxRows(size))) != start:
        rows += read(reader, start, end)
        start = end
    return set(rows)


def transact(cluster, topic, outcome):
    """Sixty records in one transaction, several batches in each of the three partitions."""
    given = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"{topic}-{time.monotonic_ns()}"}
    producer = Producer(given)
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(60):
        producer.produce(topic, b"%d" % number, partition=number % 3)
        if number % 20 == 19:
            producer.flush(30)
    if outcome == "commit":
        producer.commit_transaction(30)
    elif outcome == "abort":
        producer.abort_transaction(30)
    return producer
