"""The streams of the design papers, and the algorithm that gives them their partitions."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rayka.client.streams.streams
from rayka.client.cluster import Cluster
from rayka.client.streams.streams import AsyncStream, ConsumerConnector, Stream
from rayka.client.streams.topic_filter import Blacklist, Whitelist
from rayka.coordinator.groups.consumer.assignors import ranges
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import iter_headers, seal
from rayka.testing import wait_until
from tests.unit.client.grouped import FAST_GROUPS, write

SETTINGS: dict[str, Any] = {"auto_offset_reset": "earliest", "retry_backoff_ms": 10, "consumer_timeout_ms": 300}


@pytest.fixture
def broker_config() -> dict[str, str]:
    """Groups move fast."""
    return FAST_GROUPS


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with a topic of five partitions."""
    cluster.admin().create_topic("events", partitions=5)
    return cluster


def until(done: Callable[[], bool]) -> None:
    """Wait until something is so."""
    wait_until(done, 60, "what the test waits for")


def owners(cluster: Cluster, topic: str = "events", group_id: str = "g") -> dict[str, list[int]]:
    """The partitions of each stream that has some."""
    held: dict[str, list[int]] = {}
    for offset in cluster.admin().describe_group(group_id).offsets:
        if offset.member is not None and offset.topic_partition.topic == topic:
            held.setdefault(offset.member.member_id, []).append(offset.topic_partition.partition)
    return held


def numbers(*streams: Stream, count: int) -> list[int]:
    """What the streams give until they have given `count` records and time out."""
    given: list[int] = []

    def are_given() -> bool:
        given.extend(int(record.value) for stream in streams for record in stream)
        return len(given) >= count

    until(are_given)
    return sorted(given)


def test_each_partition_is_in_one_stream_in_rows(cluster: Cluster) -> None:
    write(cluster, 100)
    with cluster.consumer_connector("g", "one", **SETTINGS) as connector:
        streams = connector.create_message_streams({"events": 2})
        assert [*streams] == ["events"]
        until(lambda: owners(cluster) == {"one-0": [0, 1, 2], "one-1": [3, 4]})
        by_stream = [list(stream) for stream in streams["events"]]
        assert [{record.partition for record in records} for records in by_stream] == [{0, 1, 2}, {3, 4}]
        assert sorted(int(record.value) for records in by_stream for record in records) == [*range(100)]


def test_streams_of_several_consumers_in_the_order_of_their_names(cluster: Cluster) -> None:
    cluster.admin().create_topic("other", partitions=2)
    first = cluster.consumer_connector("g", "a", **SETTINGS)
    second = cluster.consumer_connector("g", "b", **SETTINGS)
    second.create_message_streams({"events": 1, "other": 1})
    first.create_message_streams({"events": 2})
    until(lambda: owners(cluster) == {"a-0": [0, 1], "a-1": [2, 3], "b-0": [4]})
    assert owners(cluster, "other") == {"b-1": [0, 1]}
    first.shutdown()
    until(lambda: owners(cluster) == {"b-0": [0, 1, 2, 3, 4]})
    second.shutdown()
    assert cluster.admin().describe_group("g").members == ()


@given(st.integers(0, 40), st.integers(1, 12))
def test_the_rows_are_those_of_the_paper(num_partitions: int, num_streams: int) -> None:
    """Stream i gets i*N to (i+1)*N-1; what is left over goes to the first ones, one each."""
    rows = ranges(num_partitions, num_streams)
    size, rest = divmod(num_partitions, num_streams)
    assert [len(row) for row in rows] == [size + 1] * rest + [size] * (num_streams - rest)
    assert [number for row in rows for number in row] == [*range(num_partitions)]


def test_a_stream_continues_from_the_committed_offsets(cluster: Cluster) -> None:
    write(cluster, 50)
    with cluster.consumer_connector("g", **SETTINGS) as connector:
        (stream,) = connector.create_message_streams({"events": 1})["events"]
        first = [int(record.value) for record in itertools.islice(stream, 20)]
    with cluster.consumer_connector("g", **SETTINGS) as connector:
        (stream,) = connector.create_message_streams({"events": 1})["events"]
        assert sorted(first + numbers(stream, count=30)) == [*range(50)]


def test_a_stream_by_batch_gives_each_record_once(cluster: Cluster) -> None:
    write(cluster, 100)
    with cluster.consumer_connector("g", **SETTINGS) as connector:
        (stream,) = connector.create_message_streams({"events": 1})["events"]
        first, batches = next(stream), []
        while batch := stream.next_batch(7):
            batches.append(batch)
        assert stream.next_batch() == []
    assert max(map(len, batches)) == 7
    assert all(len({record.partition for record in batch}) == 1 for batch in batches)
    values = [int(first.value), *(int(record.value) for batch in batches for record in batch)]
    assert sorted(values) == [*range(100)]


def test_a_batch_counts_as_read_when_the_next_one_is_asked_for(cluster: Cluster) -> None:
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")
    with cluster.consumer_connector("g", **SETTINGS) as connector:
        (stream,) = connector.create_message_streams({"one": 1})["one"]
        assert [record.offset for record in stream.next_batch(4)] == [0, 1, 2, 3]
        assert [record.offset for record in stream.next_batch(3)] == [4, 5, 6]
        committer = threading.Thread(target=connector.shutdown)  # another thread has not processed the last batch
        committer.start()
        committer.join(30)
    with cluster.consumer_connector("g", **SETTINGS) as connector:
        (stream,) = connector.create_message_streams({"one": 1})["one"]
        assert [record.offset for record in stream.next_batch()] == [4, 5, 6, 7, 8, 9]


def test_a_batch_that_begins_with_a_malformed_record_is_given_out(cluster: Cluster, tmp_path: Path) -> None:
    """The others of its records can be read."""
    with cluster.producer() as producer:
        for number in range(2):
            producer.send_batch("one", 0, [b"%d" % (10 * number + digit) for digit in range(10)])
    (segment,) = (tmp_path / "one-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    _, second = [place for place, _ in iter_headers(data)]
    data[61] ^= 0xFF
    seal(data, 0, second)
    segment.write_bytes(data)
    with cluster.consumer_connector("g", **{**SETTINGS, "consumer_timeout_ms": None}) as connector:
        (stream,) = connector.create_message_streams({"one": 1})["one"]
        batch = stream.next_batch(15)
        with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
            list(batch)
        assert [record.offset for record in [*batch[10:], *stream.next_batch()]] == [*range(10, 20)]


def test_batches_in_asyncio(cluster: Cluster) -> None:
    write(cluster, 20)

    async def program() -> list[int]:
        async with cluster.async_consumer_connector("g", **SETTINGS) as connector:
            (stream,) = (await connector.create_message_streams({"events": 1}))["events"]
            seen: list[int] = []
            while batch := await stream.next_batch():
                seen += [int(record.value) for record in batch]
            with pytest.raises(RaykaError, match="max_records must be"):
                await stream.next_batch(0)
            return seen

    assert sorted(asyncio.run(program())) == [*range(20)]


def test_commit_offsets_covers_the_records_that_were_returned(cluster: Cluster) -> None:
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")
    connector = cluster.consumer_connector("g", enable_auto_commit=False, **SETTINGS)
    (stream,) = connector.create_message_streams({"one": 1})["one"]
    assert [record.offset for record in itertools.islice(stream, 4)] == [0, 1, 2, 3]
    connector.commit_offsets()
    assert next(stream).offset == 4
    connector.shutdown()
    assert [offset.current_offset for offset in cluster.admin().describe_group("g").offsets] == [4]


def test_a_record_being_processed_is_not_committed_automatically(cluster: Cluster) -> None:
    """At least once: it counts when the next one is asked for."""
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")
    committed = cluster.consumer("g")
    connector = cluster.consumer_connector("g", auto_commit_interval_ms=10, **SETTINGS)
    (stream,) = connector.create_message_streams({"one": 1})["one"]
    worker = threading.Thread(target=lambda: [next(stream) for _ in range(4)])
    worker.start()
    worker.join()
    until(lambda: (found := committed.committed(("one", 0))) is not None and found.offset == 3)
    connector.shutdown()
    assert [offset.current_offset for offset in cluster.admin().describe_group("g").offsets] == [3]


def test_automatic_commits_do_not_move_behind_the_programs_own(cluster: Cluster) -> None:
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")
    connector = cluster.consumer_connector("g", **SETTINGS)
    (stream,) = connector.create_message_streams({"one": 1})["one"]
    worker = threading.Thread(target=lambda: [next(stream) for _ in range(4)])
    worker.start()
    worker.join()
    connector.commit_offsets()
    connector.shutdown()
    assert [offset.current_offset for offset in cluster.admin().describe_group("g").offsets] == [4]


def test_the_asynchronous_form(cluster: Cluster) -> None:
    write(cluster, 40)
    seen: list[int] = []

    async def read(stream: AsyncStream) -> None:
        while len(seen) < 40:
            seen.extend([int(record.value) async for record in stream])

    async def program() -> None:
        async with asyncio.timeout(60), cluster.async_consumer_connector("g", "one", **SETTINGS) as connector:
            (streams,) = (await connector.create_message_streams({"events": 2})).values()
            (rest,) = await connector.create_message_streams_by_filter(Whitelist("other"))
            await asyncio.gather(*map(read, streams))
            await connector.commit_offsets()
        assert [record async for record in rest] == []

    asyncio.run(program())
    assert sorted(seen) == [*range(40)]
    assert [offset.current_offset for offset in cluster.admin().describe_group("g").offsets] == [8] * 5


@pytest.mark.parametrize(("in_a_task_of_its_own", "committed"), [(True, 3), (False, 4)])
def test_a_record_that_another_task_works_on_is_not_committed(
    cluster: Cluster, in_a_task_of_its_own: bool, committed: int
) -> None:
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")

    async def program() -> None:
        async with cluster.async_consumer_connector("g", **{**SETTINGS, "consumer_timeout_ms": None}) as connector:
            (stream,) = (await connector.create_message_streams({"one": 1}))["one"]

            async def work() -> None:
                for _ in range(4):
                    await anext(stream)

            await (asyncio.create_task(work()) if in_a_task_of_its_own else work())

    asyncio.run(asyncio.wait_for(program(), 60))
    assert [offset.current_offset for offset in cluster.admin().describe_group("g").offsets] == [committed]


def read_by_batch(stream: Stream) -> None:
    """Fail with the first batch of six records."""
    for record in stream.next_batch(6):
        assert record.offset < 2


def read_by_record(stream: Stream) -> None:
    """Fail with the third record."""
    for record in stream:
        assert record.offset < 2


async def read_async(stream: AsyncStream) -> None:
    """As `read_by_record`."""
    async for record in stream:
        assert record.offset < 2


def committed(cluster: Cluster) -> list[int | None]:
    """The offset of the group in each of its partitions."""
    return [offset.current_offset for offset in cluster.admin().describe_group("g").offsets]


@pytest.mark.parametrize(("read", "first_again"), [(read_by_batch, 0), (read_by_record, 2)])
def test_a_record_with_which_the_program_fails_does_not_count_as_read(
    cluster: Cluster, read: Callable[[Stream], None], first_again: int
) -> None:
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")
    with pytest.raises(AssertionError), cluster.consumer_connector("g", **SETTINGS) as connector:
        read(*connector.create_message_streams({"one": 1})["one"])
    with cluster.consumer_connector("g", **SETTINGS) as connector:
        (stream,) = connector.create_message_streams({"one": 1})["one"]
        assert [record.offset for record in stream] == [*range(first_again, 10)]


def test_a_record_with_which_an_asynchronous_program_fails_does_not_count_as_read(cluster: Cluster) -> None:
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")

    async def program() -> None:
        async with cluster.async_consumer_connector("g", **SETTINGS) as connector:
            await read_async(*(await connector.create_message_streams({"one": 1}))["one"])

    with pytest.raises(AssertionError):
        asyncio.run(asyncio.wait_for(program(), 60))
    assert committed(cluster) == [2]


def test_a_batch_of_a_thread_that_has_ended_does_not_count_as_read_by_a_later_one(cluster: Cluster) -> None:
    """The system gives a later thread the identifier of an earlier one."""
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")
    connector = cluster.consumer_connector("g", **SETTINGS)
    (stream,) = connector.create_message_streams({"one": 1})["one"]
    for work in (lambda: stream.next_batch(3), lambda: stream.next_batch(4), connector.shutdown):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
    assert committed(cluster) == [3]


def test_a_record_with_which_a_program_fails_that_closes_only_the_cluster_does_not_count_as_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.admin().create_topic("one")
    write(cluster, 10, "one")

    def program() -> None:
        with Cluster(cluster._connection) as own:
            monkeypatch.setattr(own, "stop", own._close_clients)  # the other cluster's broker runs on
            connector = own.consumer_connector("g", **SETTINGS)
            read_by_record(*connector.create_message_streams({"one": 1})["one"])

    with pytest.raises(AssertionError):
        program()
    assert committed(cluster) == [2]


class Failing(Whitelist):
    """A filter of the program with a fault."""

    fails = False
    has_failed = False

    def allowed(self, topics: Any) -> Any:
        """As `Whitelist.allowed`, but not any more after `fails` was set."""
        if self.fails:
            self.has_failed = True
            raise ZeroDivisionError
        return super().allowed(topics)


@pytest.mark.parametrize("pause_s", [0.0, 60.0])
def test_a_filter_that_fails_keeps_no_stream_from_new_topics_or_from_leaving(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    monkeypatch.setattr(rayka.client.streams.streams, "_LOOK_AGAIN_AFTER_ERROR_S", pause_s)
    topic_filter = Failing("ev.*,la.*")
    with cluster.consumer_connector("g", **SETTINGS) as connector:
        connector.create_message_streams_by_filter(topic_filter)
        (stream,) = connector.create_message_streams_by_filter(Whitelist("la.*"))
        until(lambda: len(owners(cluster)) == 1)
        topic_filter.fails = True
        cluster.admin().create_topic("later")
        until(lambda: topic_filter.has_failed)
        write(cluster, 10, "later")
        assert numbers(stream, count=10) == [*range(10)]
    assert owners(cluster) == owners(cluster, "later") == {}


def test_a_stream_that_nobody_reads_stays_in_its_group_and_takes_part_in_rebalances(cluster: Cluster) -> None:
    write(cluster, 50)
    first = cluster.consumer_connector("g", "a", **SETTINGS)
    (idle,) = first.create_message_streams({"events": 1})["events"]
    next(idle)
    second = cluster.consumer_connector("g", "b", **SETTINGS)
    (stream,) = second.create_message_streams({"events": 1})["events"]
    until(lambda: owners(cluster) == {"a-0": [0, 1, 2], "b-0": [3, 4]})
    assert {record.partition for record in stream} == {3, 4}
    assert {record.partition for record in idle} <= {0, 1, 2}


def test_a_white_list_notices_new_topics_and_a_black_list_too(cluster: Cluster) -> None:
    cluster.admin().create_topic("other")
    white = cluster.consumer_connector("white", **SETTINGS)
    (whites,) = white.create_message_streams_by_filter(Whitelist("ev.*,la.*"))
    black = cluster.consumer_connector("black", **SETTINGS)
    blacks = black.create_message_streams_by_filter(Blacklist("ev.*"), 2)
    until(lambda: len(owners(cluster, "other", "black")) == 1)
    cluster.admin().create_topic("later", partitions=2)
    write(cluster, 10, "later")
    assert numbers(whites, count=10) == numbers(*blacks, count=10) == [*range(10)]
    assert owners(cluster, "other", "white") == {}
    assert owners(cluster, "events", "black") == {}
    assert owners(cluster, "__consumer_offsets", "black") == {}


def test_a_topic_that_appears_while_streams_of_a_filter_join_is_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch of an earlier filter had seen the topic already, so the later one's streams had to wait for another."""
    connector = cluster.async_consumer_connector("g", **SETTINGS)
    join, admin = rayka.client.streams.streams._join, cluster.async_admin()

    async def create() -> None:
        (early,) = await connector.create_message_streams_by_filter(Whitelist("la.*"))

        async def join_late(wanted: Any) -> None:
            await admin.create_topic("later")
            while await early.member.subscription() != {"later"}:
                await asyncio.sleep(0)
            await join(wanted)

        monkeypatch.setattr(rayka.client.streams.streams, "_join", join_late)
        (late,) = await connector.create_message_streams_by_filter(Whitelist("later"))
        async with asyncio.timeout(60):
            while await late.member.subscription() != {"later"}:
                await asyncio.sleep(0)
        await connector.shutdown()

    cluster._connection.loop.run(create())


def test_streams_of_a_filter_that_join_during_a_shutdown_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would watch for topics for ever."""
    connector = cluster.async_consumer_connector("g", **SETTINGS)
    join = rayka.client.streams.streams._join

    async def join_late(wanted: Any) -> None:
        await join(wanted)
        await connector.shutdown()

    monkeypatch.setattr(rayka.client.streams.streams, "_join", join_late)
    with pytest.raises(RaykaError, match="The connector is shut down"):
        cluster._connection.loop.run(connector.create_message_streams_by_filter(Whitelist("ev.*")))
    assert connector._watch is None


def test_shutting_down_ends_a_stream_that_waits(cluster: Cluster) -> None:
    connector = cluster.consumer_connector("g", **{**SETTINGS, "consumer_timeout_ms": None})
    streams = connector.create_message_streams({"events": 3})["events"]
    ended: list[int] = []
    threads = [threading.Thread(target=lambda one=one: ended.append(len(list(one)))) for one in streams]
    for thread in threads:
        thread.start()
    until(lambda: len(owners(cluster)) == 3)
    connector.shutdown()
    connector.shutdown()
    for thread in threads:
        thread.join(10)
    assert ended == [0, 0, 0]
    assert list(streams[0]) == []
    for call in (connector.commit_offsets, lambda: connector.create_message_streams({"events": 1})):
        with pytest.raises(RaykaError, match="The connector is shut down"):
            call()


def test_leaving_the_cluster_shuts_connectors_down(cluster: Cluster) -> None:
    connector: ConsumerConnector = cluster.consumer_connector("g", **SETTINGS)
    connector.create_message_streams({"events": 1})
    until(lambda: len(owners(cluster)) == 1)
    asynchronous = cluster.async_consumer_connector("g", **SETTINGS)
    cluster._connection.loop.run(asynchronous.create_message_streams({"events": 1}))
    until(lambda: len(owners(cluster)) == 2)
    admin = cluster.async_admin()
    cluster._close_clients()
    assert cluster._connection.loop.run(admin.describe_group("g")).members == ()


@pytest.mark.parametrize("pattern", ["", " ", "(", 7])
def test_invalid_filters_are_refused(pattern: Any) -> None:
    with pytest.raises(RaykaError) as refused:
        Whitelist(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_bad_arguments(cluster: Cluster) -> None:
    for settings in ({"group_instance_id": "x"}, {"group.remote.assignor": "uniform"}, {"consumer_timeout_ms": -1}):
        with pytest.raises(RaykaError, match="INVALID_CONFIG"):
            cluster.consumer_connector("g", **settings)
    connector = cluster.consumer_connector("g")
    for count in ({"events": 0}, {"events": True}, {"events": "2"}):
        with pytest.raises(RaykaError, match="a number of streams"):
            connector.create_message_streams(count)  # type: ignore[arg-type]
    with pytest.raises(RaykaError, match="a topic is a name"):
        connector.create_message_streams({"": 1})
    with pytest.raises(RaykaError, match="a Whitelist or a Blacklist"):
        connector.create_message_streams_by_filter("ev.*")  # type: ignore[arg-type]
