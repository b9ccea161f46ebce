"""What a Python program that consumes in a share group relies on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share import member
from rayka.client.share.blocking import ShareConsumer
from rayka.client.share.records import RecordAcknowledgement, ShareRecord, acknowledgement_batches
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import ShareLeaders
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.unit.client.interrupts import interrupt_next_answer

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def broker_config() -> dict[str, str]:
    """Locks last a second, and heartbeats are frequent."""
    return {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": "1000",
        "group.share.min.heartbeat.interval.ms": "50",
        "group.share.heartbeat.interval.ms": "50",
    }


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with a topic of one partition, which the group `workers` reads from the beginning."""
    cluster.admin().create_topic("tasks", partitions=1)
    configure(cluster, **{"share.auto.offset.reset": "earliest"})
    return cluster


def configure(cluster: Cluster, **configs: str) -> None:
    cluster.admin().alter_configs(ConfigResource(ResourceType.GROUP, "workers"), configs)


def write(cluster: Cluster, count: int) -> list[bytes]:
    values = [b"%04d" % number for number in range(count)]
    with cluster.producer() as producer:
        for value in values:
            producer.send("tasks", value)
    return values


def take(consumer: ShareConsumer, count: int, said: AcknowledgeType | None = None) -> list[ShareRecord]:
    """So many records, acknowledged like this."""
    taken: list[ShareRecord] = []
    end = time.monotonic() + 60
    while len(taken) < count:
        assert time.monotonic() < end, f"{len(taken)} of {count} records came"
        for record in consumer.poll(timeout_ms=500):
            taken.append(record)
            if said is not None:
                consumer.acknowledge(record, said)
    return taken


def test_records_are_accepted_with_the_next_poll(cluster: Cluster) -> None:
    values = write(cluster, 100)
    with cluster.share_consumer("workers", ["tasks"]) as consumer:
        assert sorted(record.value or b"" for record in take(consumer, 100)) == values
        assert consumer.poll(timeout_ms=200) == []
    with cluster.share_consumer("workers", ["tasks"]) as consumer:
        assert consumer.poll(timeout_ms=1500) == []


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_records_that_came_when_their_poll_was_cancelled_are_delivered_again(cluster: Cluster, mode: str) -> None:
    values = write(cluster, 3)

    async def main() -> set[bytes | None]:
        async with cluster.async_share_consumer("workers", ["tasks"], acknowledgement_mode=mode) as consumer:
            cancelled = asyncio.ensure_future(consumer.poll(timeout_ms=30_000))
            await asyncio.sleep(0)
            wait_until(lambda: consumer._arrivals.records, 60, "records have come")  # and this loop has not heard of it
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            found: set[bytes | None] = set()
            while len(found) < len(values):
                for record in await consumer.poll(timeout_ms=500):
                    found.add(record.value)
                    consumer.accept(record)
            return found

    assert asyncio.run(asyncio.wait_for(main(), 60)) == set(values)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_records_that_came_when_their_poll_was_interrupted_are_delivered_again(cluster: Cluster, mode: str) -> None:
    values = write(cluster, 3)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode=mode) as consumer:
        interrupt_next_answer(consumer)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout_ms=30_000)
        taken = take(consumer, 3, ACCEPT)
    assert sorted(record.value or b"" for record in taken) == values
    assert {record.delivery_count for record in taken} == {1}


def test_a_poll_that_waits_hears_that_the_consumer_was_closed(cluster: Cluster) -> None:
    async def main() -> None:
        consumer = cluster.async_share_consumer("workers", ["tasks"])
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=30_000))
        await asyncio.sleep(0)
        wait_until(lambda: consumer._arrivals.is_fetching, 60, "it waits for records")
        await consumer.close()
        with pytest.raises(RaykaError, match="closed"):
            await polling

    asyncio.run(asyncio.wait_for(main(), 60))


class AwayLeaders:
    """The leaders of a cluster: while `is_away` they take no request, while `is_mute` nobody hears their answers."""

    def __init__(self, leaders: ShareLeaders) -> None:
        self.is_away = self.is_mute = False
        self.away = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.gate, self.asked = asyncio.Event(), 0
        self.gate.set()
        self._leaders = leaders

    async def fetch(
        self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any
    ) -> tuple[int, list[ShareFetchResult]]:
        self.asked += 1
        await self.gate.wait()
        if self.is_away or self.is_mute:
            code = self.away if self.is_away else ErrorCode.REQUEST_TIMED_OUT
            if self.is_mute:
                await self._leaders.fetch(params._replace(max_records=0, max_wait_s=0.0), partitions)
            return 0, [ShareFetchResult(code, acknowledge_error=code)] * len(partitions)
        return await self._leaders.fetch(params, partitions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leaders, name)


@pytest.fixture
def leaders(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AwayLeaders:
    """In front of those of the cluster."""
    broker = cluster._connection.broker
    leaders = AwayLeaders(broker.share_leaders)
    monkeypatch.setattr(broker, "share_leaders", leaders)
    return leaders


@pytest.mark.parametrize("fault", ["is_away", "is_mute"])
def test_acknowledgements_that_a_fetch_could_not_deliver_are_sent_again(
    cluster: Cluster, leaders: AwayLeaders, fault: str
) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 3)
    one_by_one = {"max_poll_records": 1, "acquire_mode": "record_limit"}
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit", **one_by_one) as consumer:
        for said in (ACCEPT, RELEASE):
            take(consumer, 1, said)
            setattr(leaders, fault, True)
            assert consumer.poll() == []
            setattr(leaders, fault, False)
        assert sorted((one.offset, one.delivery_count) for one in take(consumer, 2, ACCEPT)) == [(1, 2), (2, 1)]
        consumer.commit()
    assert count_in_flight(cluster) == 0


def test_a_commit_reports_what_an_earlier_poll_could_not_deliver(cluster: Cluster, leaders: AwayLeaders) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        take(consumer, 1, ACCEPT)
        leaders.is_away = True
        assert consumer.poll() == []
        errors = consumer.commit()
        assert [error and error.code for error in errors.values()] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        leaders.is_away = False
        assert consumer.commit() == dict.fromkeys(errors)
        assert count_in_flight(cluster) == 0


def test_concurrent_poll_and_commit_resend_an_acknowledgement_only_once(cluster: Cluster, leaders: AwayLeaders) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 1)

    async def main() -> None:
        async with cluster.async_share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
            while not (records := await consumer.poll(timeout_ms=500)):
                pass
            consumer.accept(records[0])
            leaders.is_away = True
            assert await consumer.poll() == []
            leaders.is_away = False
            leaders.gate.clear()
            asked = leaders.asked
            both = asyncio.gather(consumer.poll_more(timeout_ms=0), consumer.commit())
            await asyncio.sleep(0)
            wait_until(lambda: leaders.asked > asked, 30, "the acknowledgement is on its way")
            cluster._connection.loop.call_soon(leaders.gate.set)
            _, results = await both
            assert not any(results.values())

    asyncio.run(asyncio.wait_for(main(), 60))
    assert count_in_flight(cluster) == 0


async def cancel_under_way(poll: Coroutine[Any, Any, Any], cluster: Cluster, leaders: AwayLeaders) -> None:
    """Cancel a poll whose request the leader has, and let the leader answer afterwards."""
    leaders.gate.clear()
    asked = leaders.asked
    cancelled = asyncio.ensure_future(poll)
    await asyncio.sleep(0)
    wait_until(lambda: leaders.asked > asked, 30, "the request is on its way")
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    cluster._connection.loop.call_soon(leaders.gate.set)


def test_a_poll_after_a_cancelled_one_gives_no_more_records_than_it_was_asked_for(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    limited = {"acknowledgement_mode": "explicit", "acquire_mode": "record_limit"}

    async def main() -> list[tuple[int, int]]:
        async with cluster.async_share_consumer("workers", ["tasks"], **limited) as consumer:
            while not consumer.is_assigned:
                await consumer.poll_more(timeout_ms=100)
            write(cluster, 10)
            await cancel_under_way(consumer.poll_more(timeout_ms=30_000, max_records=10), cluster, leaders)
            records = await consumer.poll_more(timeout_ms=30_000, max_records=2)
            assert len(records) == 2
            while len(records) < 10:
                records += await consumer.poll_more(timeout_ms=500)
            return sorted((one.offset, one.delivery_count) for one in records)

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [(offset, 1) for offset in range(10)]


def test_acknowledgements_of_a_cancelled_poll_are_sent(cluster: Cluster, leaders: AwayLeaders) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 1)

    async def main() -> None:
        consumer = cluster.async_share_consumer("workers", ["tasks"], acknowledgement_mode="explicit")
        while not (records := await consumer.poll(timeout_ms=500)):
            pass
        consumer.accept(records[0])
        await cancel_under_way(consumer.poll(timeout_ms=30_000), cluster, leaders)
        assert await consumer.poll() == []
        await consumer.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert count_in_flight(cluster) == 0


def count_in_flight(cluster: Cluster) -> int:
    """Records of the group that are neither accepted nor rejected."""
    broker = cluster._connection.broker
    topic_id = broker.image.topics["tasks"].topic_id.bytes
    depth = cluster._connection.loop.run(broker.share_leaders.depth("workers", TopicPartition("tasks", 0), topic_id))
    return depth.available + depth.acquired


def test_a_topic_that_does_not_exist_is_logged_with_its_name(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.share_consumer("workers", ["tasks", "taks"]).close()
    assert [record.args for record in caplog.records if record.levelname == "WARNING"] == [("taks", "workers")]


def test_each_record_is_accepted_released_or_rejected(cluster: Cluster) -> None:
    write(cluster, 6)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        for record, said in zip(take(consumer, 6), (ACCEPT, RELEASE, REJECT) * 2, strict=True):
            consumer.acknowledge(record, said)
        assert all(error is None for error in consumer.commit().values())
        assert [record.delivery_count for record in take(consumer, 2, ACCEPT)] == [2, 2]
        consumer.commit()
        assert consumer.poll(timeout_ms=1200) == []


def test_what_a_consumer_did_not_acknowledge_goes_to_another_at_once(cluster: Cluster) -> None:
    write(cluster, 4)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as leaving:
        take(leaving, 4)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        assert len(take(consumer, 4, ACCEPT)) == 4


def test_consumers_share_a_topic_record_by_record(cluster: Cluster) -> None:
    values = write(cluster, 200)
    consumers = [cluster.share_consumer("workers", ["tasks"], max_poll_records=10) for _ in range(3)]
    got: Counter[bytes] = Counter()
    end = time.monotonic() + 60
    while len(got) < len(values):
        assert time.monotonic() < end
        for consumer in consumers:
            got.update(record.value or b"" for record in consumer.poll(timeout_ms=100))
    assert got == Counter(values)
    for consumer in consumers:
        consumer.close()


def test_a_renewed_lock_outlasts_the_others(cluster: Cluster) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "3000"})
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as slow:
        (record,) = take(slow, 1)
        with cluster.share_consumer("workers", ["tasks"]) as other:
            for _ in range(3):
                assert other.poll(timeout_ms=1200) == []
                slow.renew(record)
            configure(cluster, **{"share.record.lock.duration.ms": "1000"})
            slow.renew(record)
            assert len(take(other, 1)) == 1, "without a renewal the lock expires"
        slow.acknowledge(record)
        slow.commit()


def test_an_acknowledgement_that_comes_too_late_is_reported(cluster: Cluster) -> None:
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        (record,) = take(consumer, 1)
        with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as other:
            take(other, 1, ACCEPT)
            other.commit()
        consumer.acknowledge(record)
        (error,) = consumer.commit().values()
        # Once the record is below the start offset, Kafka ignores what is said of it.
        assert error is None or error.code is ErrorCode.INVALID_RECORD_STATE


def test_a_delayed_record_holds_up_no_other_and_its_delay_outlives_the_leader(cluster: Cluster) -> None:
    write(cluster, 4)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        first, second, *others = take(consumer, 4)
        before = time.monotonic()
        consumer.release(first, delay_ms=1500)
        consumer.release(second)
        for record in others:
            consumer.accept(record)
        assert list(consumer.commit().values()) == [None]
        forget_leaders(cluster)
        assert [record.offset for record in take(consumer, 1, ACCEPT)] == [second.offset]
        (late,) = take(consumer, 1, ACCEPT)
        assert (late.offset, late.delivery_count) == (first.offset, 2)
        assert time.monotonic() - before >= 1.45


def forget_leaders(cluster: Cluster) -> None:
    """Another leader would begin like this: with what is durable."""
    connection = cluster._connection

    async def release() -> None:
        connection.broker.share_leaders.partitions.released(TopicPartition("tasks", 0))  # type: ignore[attr-defined]

    connection.loop.run(release())


def test_released_records_wait_for_the_backoff_of_the_group(cluster: Cluster) -> None:
    configure(cluster, **{"share.retry.backoff.ms": "400"})
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        before = time.monotonic()
        for delivery_count, wait_s in ((1, 0.0), (2, 0.4), (3, 0.8)):
            assert [record.delivery_count for record in take(consumer, 1, RELEASE)] == [delivery_count]
            assert time.monotonic() - before >= wait_s - 0.05
            before = time.monotonic()
            consumer.commit()


def test_a_dead_letter_has_the_traceback_of_what_went_wrong(cluster: Cluster) -> None:
    cluster.admin().create_topic("dlq.tasks", partitions=1, configs={"errors.deadletterqueue.group.enable": "true"})
    configure(cluster, **{"errors.deadletterqueue.topic.name": "dlq.tasks"})
    write(cluster, 3)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        first, second, third = take(consumer, 3)
        try:
            int(first.value or b"", base=99)
        except ValueError as error:
            consumer.reject(first, error)
        consumer.reject(second, "not for us")
        consumer.reject(third)
        consumer.commit()
    letters: list[dict[str, bytes | None]] = []
    with cluster.consumer(auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition("dlq.tasks", 0)])
        end = time.monotonic() + 60
        while len(letters) < 3:
            assert time.monotonic() < end
            polled = reader.poll(timeout_ms=500).values()
            letters += [dict(record.headers) for records in polled for record in records]
    assert [letter["__dlq.errors.offset"] for letter in letters] == [b"0", b"1", b"2"]
    assert letters[0]["__dlq.errors.exception.class.name"] == b"builtins.ValueError"
    assert b"int(first.value" in (letters[0]["__dlq.errors.exception.stacktrace"] or b"")
    assert letters[1]["__dlq.errors.message"] == b"not for us"
    assert "__dlq.errors.exception.stacktrace" not in letters[2]


@pytest.mark.parametrize("delay_ms", [-1, 86_400_001])
def test_a_delay_out_of_bounds_is_refused(cluster: Cluster, delay_ms: int) -> None:
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        (record,) = take(consumer, 1)
        with pytest.raises(RaykaError, match="delay_ms"):
            consumer.release(record, delay_ms=delay_ms)


def test_records_in_flight_are_shown_as_a_table(cluster: Cluster) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 6)

    def rows() -> list[tuple[Any, ...]]:
        table = cluster.admin().describe_share_records("workers")
        columns = ("first_offset", "last_offset", "state", "delivery_count")
        return list(zip(*(table[name].to_pylist() for name in columns), strict=True))

    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        records = take(consumer, 6)
        consumer.release(records[1], delay_ms=60_000)
        consumer.accept(records[2])
        consumer.commit()
        before = [(0, 0, "ACQUIRED", 1), (1, 1, "AVAILABLE", 1), (2, 2, "ACKNOWLEDGED", 1), (3, 5, "ACQUIRED", 1)]
        assert rows() == before
        frame = cluster.admin().describe_share_records("workers").to_pandas()
        assert set(frame.topic) == {"tasks"}
        assert list(frame.member_id.notna()) == [True, False, False, True]
        assert 10_000 < frame.remaining_ms[0] <= 30_000
        assert 40_000 < frame.remaining_ms[1] <= 60_000
    forget_leaders(cluster)
    assert rows()[1:] == [(1, 1, "AVAILABLE", 1), (2, 2, "ACKNOWLEDGED", 1), (3, 5, "AVAILABLE", 0)]
    with pytest.raises(RaykaError, match="GROUP_ID_NOT_FOUND"):
        cluster.admin().describe_share_records("nobody")


def test_records_must_be_acknowledged_before_the_next_poll_and_only_once(cluster: Cluster) -> None:
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        (record,) = take(consumer, 1)
        with pytest.raises(RaykaError, match="not acknowledged"):
            consumer.poll()
        consumer.acknowledge(record)
        with pytest.raises(RaykaError, match="already acknowledged"):
            consumer.acknowledge(record)


@pytest.mark.parametrize("kind", [AcknowledgeType.RENEW, AcknowledgeType.GAP, RecordAcknowledgement(9)])
def test_only_accept_release_and_reject_acknowledge_a_record(cluster: Cluster, kind: Any) -> None:
    """The program could say nothing more of a record whose lock it has renewed like that."""
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        (record,) = take(consumer, 1)
        with pytest.raises(RaykaError, match="`renew` restarts a lock") as raised:
            consumer.acknowledge(record, kind)
        assert raised.value.code is ErrorCode.INVALID_REQUEST
        consumer.accept(record)
        assert list(consumer.commit().values()) == [None]


def test_a_consumer_whose_close_is_interrupted_has_left_its_group(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `close` only waits for the first, and it would be a member until the end of the process."""
    consumer = cluster.share_consumer("workers", ["tasks"])
    wait_until(lambda: cluster.admin().list_groups(["Stable"], ["share"]), 60, "it is a member")
    is_closing, may_end = threading.Event(), asyncio.Event()

    async def end_session(*_: object, **__: object) -> None:
        is_closing.set()
        await may_end.wait()

    monkeypatch.setattr(cluster._connection.broker.share_leaders, "end_session", end_session)
    closing = consumer._loop.submit(consumer._core.close())
    assert is_closing.wait(20)
    closing.cancel()
    wait_until(lambda: cluster.admin().list_groups(["Empty"], ["share"]), 60, "it has left")
    cluster._connection.loop.call_soon(may_end.set)


def test_a_member_whose_coordinator_does_not_answer_closes_and_heartbeats_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "_TIMEOUT_S", 0.05)
    groups: Any = cluster._connection.broker.groups
    asked: list[object] = []

    async def answer_nothing(request: object) -> None:
        asked.append(request)
        await asyncio.Event().wait()

    with cluster.share_consumer("workers", ["tasks"]):
        wait_until(lambda: cluster.admin().list_groups(["Stable"], ["share"]), 60, "it is a member")
        monkeypatch.setattr(groups, "execute", answer_nothing)
        wait_until(lambda: len(asked) >= 3, 60, "more than one heartbeat")


def test_a_member_gets_the_assignment_of_an_answer_that_was_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka's clients: a heartbeat after one that failed has all fields, and its answer has the assignment."""
    groups: Any = cluster._connection.broker.groups
    execute, lost = groups.execute, []

    async def lose_an_assignment(request: Any) -> Any:
        answer = await execute(request)
        if not lost and getattr(answer, "assignment", None):
            lost.append(answer)
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        return answer

    with cluster.share_consumer("workers", ["tasks"]) as consumer:
        wait_until(lambda: consumer._core._member.assignment, 60, "it has the first partition")
        monkeypatch.setattr(groups, "execute", lose_an_assignment)
        cluster.admin().create_partitions({"tasks": 2})
        wait_until(lambda: lost, 60, "the answer with the second partition is lost")
        wait_until(lambda: len(consumer._core._member.assignment) == 2, 20, "it has both partitions")


def test_an_unknown_mode_is_refused(cluster: Cluster) -> None:
    with pytest.raises(RaykaError, match="acknowledgement_mode"):
        cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="sometimes")


def test_a_name_in_place_of_a_list_of_topics_is_refused(cluster: Cluster) -> None:
    with pytest.raises(RaykaError, match="a list of names"):
        cluster.share_consumer("workers", "tasks")


@pytest.mark.parametrize(
    ("types", "batches"),
    [
        ({}, []),
        ({3: (1,), 1: (1,), 2: (1,)}, [(1, 3, (1,))]),
        ({1: (1,), 2: (2,)}, [(1, 2, (1, 2))]),
        ({1: (1,), 3: (1,)}, [(1, 1, (1,)), (3, 3, (1,))]),
        ({1: (2, 9), 2: (2, 9), 3: (2,), 4: (1,)}, [(1, 2, (2,), 9), (3, 4, (2, 1))]),
    ],
)
def test_acknowledgements_are_sent_as_runs_of_offsets(types: dict[int, tuple[int, ...]], batches: list[Any]) -> None:
    said = {offset: RecordAcknowledgement(*one) for offset, one in types.items()}
    assert acknowledgement_batches(said) == tuple(AcknowledgementBatch(*batch) for batch in batches)


def test_a_leader_that_finds_its_log_damaged_is_an_error(cluster: Cluster, leaders: AwayLeaders) -> None:
    """Kafka calls CORRUPT_MESSAGE retriable, for producers: a poll that tried again would do so for ever."""
    with cluster.share_consumer("workers", ["tasks"]) as consumer:
        leaders.is_away, leaders.away = True, ErrorCode.CORRUPT_MESSAGE
        with pytest.raises(RaykaError, match="tasks-0") as raised:
            take(consumer, 1)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        leaders.is_away = False
