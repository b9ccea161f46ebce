"""Reading ranges from partition actors that die, move and are replaced."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
import ray.exceptions

from rayka.actors.replica.published_ranges import PublishedRange
from rayka.client.consumer.range_reader import RangeReader, TopicDeleted
from rayka.client.consumer.remote_ranges import RangeRecords
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.storage.remote.remote_range import RemoteRange
from rayka.types import IsolationLevel, TopicPartition

TABLE_OFFSETS = 10
TOPIC_ID = uuid.uuid4()


class ScriptedLeaders:
    """A leader whose tables have ten offsets each. `failures` are raised first, one for each `get`."""

    def __init__(self, log_start_offset=0):
        self.log_start_offset = log_start_offset
        self.local_log_start_offset = 0
        self.failures = []
        self.asked = []

    def publish(self, name, request):
        self.asked.append((name, request.start_offset, request.topic_id))
        if request.may_be_remote and request.start_offset < self.local_log_start_offset:
            return "located", RemoteRange(None, request.start_offset, self.local_log_start_offset, ())
        return "publish", request.start_offset, request.end_offset

    def get(self, ref, timeout_s):
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        if ref[0] == "table":
            return ref
        if ref[0] == "located":
            return ref[1]
        _, position, end_offset = ref
        if position < self.log_start_offset:
            raise RaykaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log starts at {self.log_start_offset}")
        tables = []
        while position < end_offset and len(tables) < 2:
            end = min(position + TABLE_OFFSETS, end_offset)
            tables.append(PublishedRange(position, end, 1, ("table", position, end)))
            position = end
        return tables

    def forget(self):
        pass


class Reading:
    """A reader with a clock that only sleeping and `work` move."""

    def __init__(self, leaders, earliest=None, remote=None):
        self.now_s = 0.0
        self.topic_id = TOPIC_ID
        partition = SimpleNamespace(leader_actor="the actor")
        self.image = SimpleNamespace(
            topics={"t": SimpleNamespace(name="t", topic_id=TOPIC_ID)}, partition=lambda _: partition
        )
        self.reader = RangeReader(
            SimpleNamespace(image=self.image), ("value",), IsolationLevel.READ_COMMITTED, leaders=leaders,
            earliest=earliest, remote=remote, clock=lambda: self.now_s, sleep=self.work,
        )  # fmt: skip

    def work(self, seconds):
        self.now_s += seconds

    def read(self, end_offset=60):
        return self.reader.read(OffsetRange("t", 0, 0, end_offset, TOPIC_ID))


def positions(records):
    return [each.batch[1] for each in records]


class ScriptedRemote:
    """A store that gives five offsets at a time, and fails at `fails_at`."""

    def __init__(self, fails_at=1_000):
        self.fails_at = fails_at
        self.given = []

    def read(self, wanted, columns):
        for start in range(wanted.start_offset, wanted.end_offset, 5):
            if start >= self.fails_at:
                raise OSError("the store is away")
            self.given.append(start)
            yield RangeRecords(start + 5, ("remote", start))


def test_what_is_in_the_store_alone_is_read_there_and_the_rest_from_the_leader():
    leaders, remote = ScriptedLeaders(), ScriptedRemote()
    leaders.local_log_start_offset = 20
    assert positions(Reading(leaders, remote=lambda: remote).read()) == [0, 5, 10, 15, 20, 30, 40, 50]
    assert remote.given == [0, 5, 10, 15]


def test_the_leader_is_asked_where_the_store_fails():
    leaders, remote = ScriptedLeaders(), ScriptedRemote(fails_at=10)
    leaders.local_log_start_offset = 20
    assert positions(Reading(leaders, remote=lambda: remote).read()) == [0, 5, 10, 20, 30, 40, 50]


def test_records_from_the_store_end_a_row_of_failures():
    leaders = ScriptedLeaders()
    leaders.local_log_start_offset = 20
    reading = Reading(leaders, remote=lambda: ScriptedRemote())
    leaders.failures = [ray.exceptions.ActorDiedError()]
    records = reading.read()
    found = [next(records) for _ in range(4)]
    reading.work(100)
    leaders.failures = [ray.exceptions.ActorDiedError()]
    found += records
    assert positions(found) == [0, 5, 10, 15, 20, 30, 40, 50]


def test_a_range_is_read_in_order():
    leaders = ScriptedLeaders()
    assert positions(Reading(leaders).read()) == [0, 10, 20, 30, 40, 50]
    assert {(name, topic_id) for name, _, topic_id in leaders.asked} == {("the actor", TOPIC_ID)}


@pytest.mark.parametrize("failures", [1, 30])
def test_a_reader_that_is_slow_survives_the_restart_of_a_leader(failures):
    leaders = ScriptedLeaders()
    reading = Reading(leaders)
    read = []
    for records in reading.read():
        read.append(records)
        if len(read) == 3:
            leaders.failures = [ray.exceptions.ActorDiedError()] * failures
        reading.work(3_600)  # an hour for each table
    assert positions(read) == [0, 10, 20, 30, 40, 50]


def test_a_leader_that_does_not_come_back_is_waited_for_a_minute():
    leaders = ScriptedLeaders()
    reading = Reading(leaders)
    records = reading.read()
    next(records)
    leaders.failures = [ray.exceptions.ActorDiedError()] * 10_000
    started_s = reading.now_s
    with pytest.raises(RaykaError, match="t-0 from offset 10 to 60") as failure:
        list(records)
    assert failure.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert 60 <= reading.now_s - started_s <= 61


def test_a_reader_that_gave_a_range_up_waits_again_for_the_next():
    leaders = ScriptedLeaders()
    reading = Reading(leaders)
    leaders.failures = [ray.exceptions.ActorDiedError()] * 10_000
    with pytest.raises(RaykaError):
        list(reading.read())
    leaders.failures = [ray.exceptions.ActorDiedError()] * 2
    assert positions(reading.read()) == [0, 10, 20, 30, 40, 50]


def test_a_topic_that_was_created_again_is_an_error_at_once():
    leaders = ScriptedLeaders()
    reading = Reading(leaders)
    records = reading.read()
    next(records)
    leaders.failures = [None, RaykaError(ErrorCode.INCONSISTENT_TOPIC_ID)]
    reading.image.topics["t"] = SimpleNamespace(name="t", topic_id=uuid.uuid4())
    with pytest.raises(RaykaError, match="topic t was deleted and created again") as failure:
        list(records)
    assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert reading.now_s < 1


def test_a_topic_that_was_deleted_is_an_error_within_seconds():
    """The others of a stream that skips what is lost must not wait for it, as they would for a leader's restart."""
    reading = Reading(ScriptedLeaders())
    records = reading.read()
    next(records)
    next(records)
    reading.image.topics.clear()
    reading.image.partition = lambda _: None
    with pytest.raises(TopicDeleted, match="topic t was deleted") as failure:
        list(records)
    assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert 2 <= reading.now_s < 3


def test_a_topic_that_was_deleted_before_its_range_was_read_is_an_error_within_seconds():
    """This process has not seen it, but whoever planned the range has."""
    reading = Reading(ScriptedLeaders())
    reading.image.topics.clear()
    reading.image.partition = lambda _: None
    with pytest.raises(TopicDeleted, match="topic t was deleted") as failure:
        list(reading.read())
    assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reading.now_s < 16


@pytest.mark.parametrize("heard_s", [1, 10])
def test_a_topic_that_this_process_has_yet_to_hear_of_is_waited_for(heard_s):
    """It was not deleted."""
    reading = Reading(ScriptedLeaders())
    topics, partition = dict(reading.image.topics), reading.image.partition
    reading.image.topics.clear()
    reading.image.partition = lambda _: None

    def hear(seconds):
        reading.now_s += seconds
        if reading.now_s >= heard_s:
            reading.image.topics, reading.image.partition = topics, partition

    reading.reader._sleep = hear
    assert positions(reading.read()) == [0, 10, 20, 30, 40, 50]


def test_records_that_were_deleted_are_an_error_unless_they_are_to_be_skipped():
    leaders = ScriptedLeaders(log_start_offset=35)
    with pytest.raises(RaykaError) as failure:
        list(Reading(leaders).read())
    assert failure.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    starts = {TopicPartition("t", 0): 35}
    assert positions(Reading(leaders, starts.__getitem__).read()) == [35, 45, 55]
    assert positions(Reading(leaders, starts.__getitem__).read(30)) == []
