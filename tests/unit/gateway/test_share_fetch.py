"""ShareFetch and ShareAcknowledge on the wire, over the real share-partitions and share coordinator."""

from __future__ import annotations

import asyncio
import datetime
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.share import partitions as partitions_module
from rayka.coordinator.shares.requests import InitializeShareGroupStateRequest, StateBatch
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import ConfigAlteration, ConfigOperation, NewTopic
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.config import ShareGroupConfig
from rayka.share.requests import ShareFetchParams, ShareFetchPartition
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.segments.reader import SegmentReader
from rayka.types import AppendParams, AppendRequest, FileSlice, TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import append, create, make, run
from tests.unit.gateway.test_listener import fill
from tests.unit.gateway.wire_client import WireClient

FETCH, ACKNOWLEDGE = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
NONE = ErrorCode.NONE
DAMAGED = ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Member:
    """A member of group `g` on one connection, reading partition 0 of topic `t`."""

    def __init__(self, client: WireClient, broker: LocalBroker, member_id: str = "m", version: int = 2) -> None:
        self._client = client
        self._broker = broker
        self._member_id = member_id
        self._version = version
        self.epoch = 0

    async def fetch(self, *acknowledged: tuple[int, int, int], **values: Any) -> Any:
        """The response to a fetch that acknowledges (first offset, last offset, type)."""
        request = self._request(FETCH, "Fetch", acknowledged, values)
        response = await self._client.call(FETCH, self._version, request)
        self.epoch += 1
        return response

    async def acknowledge(self, *acknowledged: tuple[int, int, int], **values: Any) -> Any:
        request = self._request(ACKNOWLEDGE, "Acknowledge", acknowledged, values)
        response = await self._client.call(ACKNOWLEDGE, self._version, request)
        self.epoch += 1
        return response

    def _request(self, key: ApiKey, kind: str, acknowledged: Any, values: dict[str, Any]) -> Any:
        def of(name: str, **fields: Any) -> Any:
            return make(key, self._version, name, **fields)

        batches = tuple(
            of("AcknowledgementBatch", first_offset=first, last_offset=last, acknowledge_types=(said,))
            for first, last, said in acknowledged
        )
        topic_id = values.pop("topic_id", self._broker.image.topics["t"].topic_id)
        partition = of(f"{kind}Partition", partition_index=0, acknowledgement_batches=batches)
        fields = {
            "group_id": "g",
            "member_id": self._member_id,
            "share_session_epoch": self.epoch,
            "max_wait": datetime.timedelta(milliseconds=values.pop("wait_ms", 0)),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": (of(f"{kind}Topic", topic_id=topic_id, partitions=(partition,)),),
            "forgotten_topics_data": (),
            **values,
        }
        return of(f"Share{kind}Request", **fields)


def records_of(response: Any) -> list[tuple[int, int, int]]:
    """What was acquired, which the records in the response contain."""
    acquired = []
    for topic in response.responses:
        for partition in topic.partitions:
            assert (partition.error_code, partition.acknowledge_error_code) == (NONE, NONE), partition
            headers = [header for _, header in iter_headers(bytes(partition.records or b""))]
            for one in partition.acquired_records:
                assert headers[0].base_offset <= one.first_offset <= one.last_offset <= headers[-1].last_offset
                acquired.append((one.first_offset, one.last_offset, one.delivery_count))
    return acquired


def check(path: Path, body: Callable[[WireClient, LocalBroker], Coroutine[Any, Any, None]], **configs: str) -> None:
    """Run `body` against a broker that has topic `t`, which group `g` reads from the beginning."""

    async def begin(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("t", num_partitions=1))
        topic_id = broker.image.topics["t"].topic_id
        answer = await broker.shares.execute(InitializeShareGroupStateRequest("g", topic_id, 0, 1, 0))
        assert answer.error is NONE
        await body(client, broker)

    run(path, begin, **{"group_share_min_record_lock_duration_ms": "1000", **configs})


@pytest.mark.parametrize("version", [1, 2])
def test_records_are_acquired_and_acknowledged_with_the_next_fetch(tmp_path: Path, version: int) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2, 3)
        member = Member(client, broker, version=version)
        first = await member.fetch()
        assert first.acquisition_lock_timeout == datetime.timedelta(seconds=30)
        assert records_of(first) == [(0, 2, 1)]
        append(broker, "t", 4)
        assert records_of(await member.fetch((0, 2, ACCEPT))) == [(3, 3, 1)]
        (state,) = broker.shares.core.states.values()
        assert state.state_batches == (StateBatch(0, 2, 2, 1),)

    check(tmp_path, body)


@pytest.mark.parametrize(("are_here", "count"), [(True, 8), (False, 3)])
def test_a_response_has_4_mb_at_most_of_what_another_node_sends(tmp_path: Path, are_here: bool, count: int) -> None:
    """It is in memory until the client takes it, and there may be many clients."""

    async def body(client: WireClient, broker: LocalBroker) -> None:
        fill(broker, 8, 1_100_000, "t")
        partitions: Any = broker.partitions
        partitions.are_on_this_node = lambda _: are_here
        response = await Member(client, broker).fetch(max_bytes=50 << 20)
        assert sum(last - first + 1 for first, last, _ in records_of(response)) == count

    check(tmp_path, body, message_max_bytes="2000000")


def test_a_fetch_waits_for_records(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        member = Member(client, broker)
        await member.fetch()
        waiting = asyncio.ensure_future(member.fetch(wait_ms=20_000))
        await asyncio.sleep(0)
        append(broker, "t", 1)
        assert records_of(await waiting) == [(0, 0, 1)]
        begun = time.monotonic()
        empty = await member.fetch((0, 0, ACCEPT), wait_ms=200)
        assert time.monotonic() - begun >= 0.19
        assert records_of(empty) == []

    check(tmp_path, body)


def test_records_go_to_the_waiting_fetch_that_can_use_them(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        partition = ShareFetchPartition(TopicPartition("t", 0), broker.image.topics["t"].topic_id.bytes)
        wants_more = ShareFetchParams("g", "many", 20.0, 1 << 20, 2 << 20, max_records=500)
        wants_some = ShareFetchParams("g", "some", 20.0, 1, 1 << 20, max_records=1, acquire_mode=1)
        waiting = [
            asyncio.ensure_future(broker.share_leaders.fetch(params, [partition]))
            for params in (wants_more, wants_some, wants_some._replace(member_id="others"))
        ]
        async with asyncio.timeout(60):
            while len(broker.share_leaders.partitions._waiters._by_member) < len(waiting):
                await asyncio.sleep(0)
        append(broker, "t", 1, 2)
        got = [(await waited)[1][0].acquired for waited in waiting[1:]]
        assert [tuple(one) for (one,) in got] == [(0, 0, 1), (1, 1, 1)]
        waiting[0].cancel()

    check(tmp_path, body)


def test_too_few_records_are_left_to_others_and_the_first_fetch_knows_how_many_there_are(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2, 3)
        partition = ShareFetchPartition(TopicPartition("t", 0), broker.image.topics["t"].topic_id.bytes)
        params = ShareFetchParams("g", "m", 0.0, 1, 1 << 20, max_records=10, acquire_mode=1)
        for least, acquired in ((4, []), (3, [(0, 2, 1)])):
            _, (result,) = await broker.share_leaders.fetch(params._replace(min_records=least), [partition])
            assert [tuple(one) for one in result.acquired] == acquired
            broker.share_leaders.partitions.released(partition.topic_partition)
        broker.shares.failures += [RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no state")]
        _, (result,) = await broker.share_leaders.fetch(params._replace(min_records=1), [partition])
        assert result.error == ErrorCode.UNKNOWN_SERVER_ERROR

    check(tmp_path, body)


def test_released_records_go_to_another_member_that_waits(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2)
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 1, 1)]
        port = client.writer.get_extra_info("peername")[1]
        neighbour = await WireClient.connect(port)
        other = Member(neighbour, broker, "other")
        waiting = asyncio.ensure_future(other.fetch(wait_ms=20_000))
        answer = await member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE))
        assert answer.responses[0].partitions[0].error_code == NONE
        assert records_of(await waiting) == [(1, 1, 2)]
        await neighbour.close()

    check(tmp_path, body)


@pytest.mark.parametrize("ending", ["final fetch", "final acknowledgement", "connection"])
def test_records_come_back_when_a_session_ends(tmp_path: Path, ending: str) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2)
        leaving = await WireClient.connect(client.writer.get_extra_info("peername")[1])
        member = Member(leaving, broker, "leaving")
        assert records_of(await member.fetch()) == [(0, 1, 1)]
        waiting = asyncio.ensure_future(Member(client, broker).fetch(wait_ms=20_000))
        if ending == "final fetch":
            await member.fetch((0, 0, ACCEPT), share_session_epoch=-1)
        elif ending == "final acknowledgement":
            await member.acknowledge((0, 0, ACCEPT), share_session_epoch=-1)
        await leaving.close()
        # A member that leaves has not given the rest to its program; whether one that was lost has, nobody knows.
        assert records_of(await waiting) == ([(0, 1, 2)] if ending == "connection" else [(1, 1, 1)])

    check(tmp_path, body)


def test_a_lost_connection_that_is_noticed_late_takes_nothing_from_a_member_that_is_back(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2)
        partition = TopicPartition("t", 0)
        topic_id = broker.image.topics["t"].topic_id.bytes
        wanted = ShareFetchPartition(partition, topic_id)
        before = ShareFetchParams("g", "m", 0.0, 1, 1 << 20, max_records=1, acquire_mode=1, session_id="before")
        now = before._replace(max_records=500, session_id="now")
        for params, offset in ((before, 0), (now, 1)):
            _, (result,) = await broker.share_leaders.fetch(params, [wanted])
            assert [tuple(one) for one in result.acquired] == [(offset, offset, 1)]
        await broker.share_leaders.end_session("g", "m", [partition], is_lost=True, session_id="before")
        said = (AcknowledgementBatch(0, 1, (ACCEPT,)),)
        _, (result,) = await broker.share_leaders.fetch(now, [ShareFetchPartition(partition, topic_id, False, said)])
        assert result.acknowledge_error == NONE
        await broker.share_leaders.end_session("g", "m", [partition], is_lost=True, session_id="now")
        assert len(broker.share_leaders.partitions) == 0

    check(tmp_path, body)


def test_a_lock_that_is_renewed_outlasts_the_others(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2)
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 1, 1)]
        await asyncio.sleep(0.6)
        answer = await member.acknowledge((0, 0, RENEW), is_renew_ack=True)
        assert answer.acquisition_lock_timeout == datetime.timedelta(seconds=1)
        assert answer.responses[0].partitions[0].error_code == NONE
        assert records_of(await member.fetch(wait_ms=900)) == [(1, 1, 2)]

    check(tmp_path, body, group_share_record_lock_duration_ms="1000")


def test_a_group_may_forbid_to_renew_locks(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(broker, "g", share_renew_acknowledge_enable="false")
        append(broker, "t", 1)
        member = Member(client, broker)
        await member.fetch()
        answer = await member.acknowledge((0, 0, RENEW), is_renew_ack=True)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST

    check(tmp_path, body)


def test_a_broker_keeps_no_more_share_sessions_than_its_limit(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        assert (await Member(client, broker, "first").fetch()).error_code == NONE
        answer = await Member(client, broker, "second").fetch()
        assert answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED

    check(tmp_path, body, group_share_max_share_sessions="1")


def test_without_room_for_more_records_in_flight_nothing_is_acquired(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", *range(150))
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 99, 1)]
        assert records_of(await member.fetch(wait_ms=50)) == []
        assert records_of(await member.fetch((0, 9, ACCEPT), wait_ms=20_000)) == [(100, 109, 1)]

    check(tmp_path, body, group_share_partition_max_record_locks="100")


def test_deleted_records_make_room_for_a_fetch_that_waits(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", *range(150))
        at = TopicPartition("t", 0)
        partition = ShareFetchPartition(at, broker.image.topics["t"].topic_id.bytes)
        params = ShareFetchParams("g", "m", 0.0, 1, 1 << 20, max_records=100, acquire_mode=1)
        _, (first,) = await broker.share_leaders.fetch(params, [partition])
        assert [tuple(one) for one in first.acquired] == [(0, 99, 1)]
        waits = params._replace(member_id="waits", max_wait_s=60.0)
        waiting = asyncio.ensure_future(broker.share_leaders.fetch(waits, [partition]))
        async with asyncio.timeout(60):
            while not broker.share_leaders.partitions._waiters._by_member:
                await asyncio.sleep(0)
            await broker.partitions.delete_records({at: 60}, 1000)
            await broker.share_leaders.depth("g", at, partition.topic_id)
            _, (found,) = await waiting
        assert [tuple(one) for one in found.acquired] == [(100, 149, 1)]

    check(tmp_path, body, group_share_partition_max_record_locks="100")


def test_record_limit_mode_gives_no_more_than_asked_for(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", *range(10))
        member = Member(client, broker)
        assert records_of(await member.fetch(max_records=3, share_acquire_mode=1)) == [(0, 2, 1)]
        assert records_of(await member.fetch(max_records=3, share_acquire_mode=1)) == [(3, 5, 1)]
        answer = await member.fetch(share_acquire_mode=9)
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    check(tmp_path, body)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"group_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"share_session_epoch": 5}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ({"share_session_epoch": -1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
    ],
)
def test_a_fetch_that_fits_no_session_is_refused(tmp_path: Path, values: dict[str, Any], error: ErrorCode) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        answer = await Member(client, broker).fetch(**values)
        assert answer.error_code == error
        assert answer.error_message

    check(tmp_path, body)


def test_a_request_that_opens_a_session_acknowledges_nothing(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        answer = await Member(client, broker).fetch((0, 0, ACCEPT))
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    check(tmp_path, body)


def test_an_unknown_topic_id_is_an_error_of_its_partition(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        answer = await Member(client, broker).fetch(topic_id=uuid.uuid4())
        (topic,) = answer.responses
        assert [partition.error_code for partition in topic.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]

    check(tmp_path, body)


def test_records_that_a_member_does_not_hold_are_not_acknowledged(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2)
        member = Member(client, broker)
        await member.fetch()
        codes = []
        for acknowledged in ((0, 0, ACCEPT), (0, 0, ACCEPT), (1, 7, ACCEPT), (1, 1, 9)):
            answer = await member.acknowledge(acknowledged)
            codes.append(answer.responses[0].partitions[0].error_code)
        assert codes == [NONE, NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]

    check(tmp_path, body)


def test_nothing_is_acknowledged_before_it_is_durable(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        member = Member(client, broker)
        await member.fetch()
        broker.shares.failures.append(RaykaError(ErrorCode.FENCED_STATE_EPOCH))
        answer = await member.acknowledge((0, 0, ACCEPT))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert records_of(await member.fetch(wait_ms=1000)) == [(0, 0, 1)], "state is loaded again after the fence"

    check(tmp_path, body)


def test_a_coordinator_that_is_away_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        member = Member(client, broker)
        await member.fetch()
        broker.shares.failures += [RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 2
        answer = await member.acknowledge((0, 0, ACCEPT))
        assert answer.responses[0].partitions[0].error_code == NONE

    check(tmp_path, body)


def test_no_record_is_delivered_before_the_group_has_state(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        member = Member(client, broker)
        begun = time.monotonic()
        assert records_of(await member.fetch(group_id="another", wait_ms=200)) == []
        assert time.monotonic() - begun >= 0.19, "a client that asks again and again would keep the broker busy"
        assert len(broker.share_leaders.partitions._members) == 0
        topic_id = broker.image.topics["t"].topic_id
        await broker.shares.execute(InitializeShareGroupStateRequest("another", topic_id, 0, 1, 0))
        assert records_of(await member.fetch(group_id="another")) == [(0, 0, 1)]

    check(tmp_path, body)


def test_members_that_were_killed_are_forgotten_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "_FORGOTTEN_AFTER_S", 0.05)

    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        partitions = broker.share_leaders.partitions
        monkeypatch.setattr(partitions, "_group_config", lambda _: ShareGroupConfig(record_lock_duration_ms=200))
        wanted = ShareFetchPartition(TopicPartition("t", 0), broker.image.topics["t"].topic_id.bytes)
        params = ShareFetchParams("g", "m", 1.0, 1, 1 << 20, 10)
        await broker.share_leaders.fetch(params, [wanted])
        assert partitions._members.keys() == {"g"}
        await until(lambda: not partitions._members and len(partitions) == 0)
        _, (result,) = await broker.share_leaders.fetch(params, [wanted])
        assert result.acquired == ((0, 0, 2),)

    check(tmp_path, body)


def test_a_member_keeps_its_locks_however_long_it_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_module, "_FORGOTTEN_AFTER_S", 0.05)

    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 0, 1)]
        await until(lambda: not broker.share_leaders.partitions._members)
        wanted = ShareFetchPartition(TopicPartition("t", 0), broker.image.topics["t"].topic_id.bytes)
        params = ShareFetchParams("g", "other", 0.05, 1, 1 << 20, 10)
        _, (result,) = await broker.share_leaders.fetch(params, [wanted])
        assert result.acquired == ()
        answer = await member.acknowledge((0, 0, ACCEPT))
        assert answer.responses[0].partitions[0].error_code == NONE

    check(tmp_path, body)


def test_groups_that_nobody_comes_back_for_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "_KEPT_S", 0.05)

    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        partitions = broker.share_leaders.partitions
        topic_id = broker.image.topics["t"].topic_id
        wanted = ShareFetchPartition(TopicPartition("t", 0), topic_id.bytes)
        is_there, execute = asyncio.Event(), broker.shares.execute

        async def execute_late(request: Any) -> Any:
            await is_there.wait()
            return await execute(request)

        monkeypatch.setattr(broker.shares, "execute", execute_late)
        for group_id in ("g", *(f"unknown-{number}" for number in range(20))):
            await broker.share_leaders.fetch(ShareFetchParams(group_id, "m", 0.0, 1, 1 << 20, 0), [wanted])
            await broker.share_leaders.end_session(group_id, "m", [wanted.topic_partition], is_lost=False)
        assert len(partitions) == 21
        is_there.set()
        await until(lambda: len(partitions) == 0)

    check(tmp_path, body)


# Dead letters.

DEAD_LETTER_HEADERS = {
    "__dlq.errors.topic": b"t",
    "__dlq.errors.partition": b"0",
    "__dlq.errors.group": b"g",
    "__dlq.errors.delivery.count": b"1",
}


async def configure(broker: LocalBroker, name: str, **configs: str) -> None:
    """Set configs of the group, or of a topic; `_` stands for `.`."""
    kind = ResourceType.GROUP if name == "g" else ResourceType.TOPIC
    changes = tuple(ConfigOperation(key.replace("_", "."), 0, value) for key, value in configs.items())
    (result,) = await broker.controller.incremental_alter_configs(
        [ConfigAlteration(ConfigResource(kind, name), changes)], False
    )
    assert result.error == NONE, result


def dead_letters(broker: LocalBroker, topic: str = "dlq.t") -> list[Record]:
    log = broker.partitions.replicas.get(TopicPartition(topic, 0)).log
    found = log.read(0, 1 << 20, log.high_watermark)
    return [] if found is None else list(read_records(SegmentReader().read(found)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def start_offset(broker: LocalBroker) -> int:
    (leader,) = broker.share_leaders.partitions._leaders.values()
    return leader.core.start_offset


@pytest.mark.parametrize("copied", ["false", "true"])
def test_rejected_records_go_to_the_dead_letter_topic(tmp_path: Path, copied: str) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(
            broker,
            "g",
            errors_deadletterqueue_topic_name="dlq.t",
            errors_deadletterqueue_copy_record_enable=copied,
        )
        append(broker, "t", 1, 2, 3)
        member = Member(client, broker)
        await member.fetch()
        await member.acknowledge((0, 0, ACCEPT), (1, 2, REJECT))
        await until(lambda: start_offset(broker) == 3)
        letters = dead_letters(broker)
        assert [record.value for record in letters] == ([b"v", b"v"] if copied == "true" else [None, None])
        assert [dict(record.headers)["__dlq.errors.offset"] for record in letters] == [b"1", b"2"]
        assert all(dict(record.headers).items() >= DEAD_LETTER_HEADERS.items() for record in letters)
        assert all("__dlq.errors.message" in dict(record.headers) for record in letters)

    check(tmp_path, body, errors_deadletterqueue_auto_create_topics_enable="true")


def test_records_that_were_delivered_too_often_are_dead_letters(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(broker, "g", errors_deadletterqueue_topic_name="dlq.t", share_delivery_count_limit="2")
        append(broker, "t", 1)
        member = Member(client, broker)
        for _ in range(2):
            await member.fetch()
            await member.acknowledge((0, 0, RELEASE))
        await until(lambda: start_offset(broker) == 1)
        (letter,) = dead_letters(broker)
        assert dict(letter.headers)["__dlq.errors.delivery.count"] == b"2"

    check(tmp_path, body, errors_deadletterqueue_auto_create_topics_enable="true")


def test_a_record_that_the_last_member_rejects_as_it_leaves_is_a_dead_letter(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(broker, "g", errors_deadletterqueue_topic_name="dlq.t")
        append(broker, "t", 1)
        await Member(client, broker).fetch()
        partitions = broker.share_leaders.partitions
        (leader,) = partitions._leaders.values()
        rejected = leader.acknowledge("m", (AcknowledgementBatch(0, 0, (REJECT,)),), renew_allowed=False)
        partitions._left("g", "m")
        await rejected
        await until(lambda: len(partitions) == 0)
        assert len(dead_letters(broker)) == 1

    check(tmp_path, body, errors_deadletterqueue_auto_create_topics_enable="true")


def test_a_dead_letter_topic_that_takes_only_small_batches_does_not_hold_up_its_source(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(
            broker,
            "g",
            errors_deadletterqueue_topic_name="dlq.t",
            errors_deadletterqueue_copy_record_enable="true",
        )
        await create(broker, NewTopic("dlq.t", num_partitions=1))
        await configure(broker, "dlq.t", errors_deadletterqueue_group_enable="true", max_message_bytes="2000")
        values = [b"a" * 900, b"b" * 900, b"c" * 3000, b"d" * 900]
        records = [Record(offset, 1, None, value, ()) for offset, value in enumerate(values)]
        request = AppendRequest(TopicPartition("t", 0), memoryview(build_batch(records)))
        assert broker.partitions.replicas.append(request, AppendParams(1, 1000), 0).result.error == 0
        member = Member(client, broker)
        await member.fetch()
        await member.acknowledge((0, 3, REJECT))
        await until(lambda: start_offset(broker) == 4)
        letters = dead_letters(broker)
        assert [record.value for record in letters] == [values[0], values[1], None, values[3]], "the third is too large"
        assert [dict(record.headers)["__dlq.errors.offset"] for record in letters] == [b"0", b"1", b"2", b"3"]

    check(tmp_path, body)


def damage(broker: LocalBroker, offset: int, place: int, damaged: bytes) -> None:
    """Overwrite a part of the batch at an offset of topic `t`, from a place in it on."""
    log = broker.partitions.replicas.get(TopicPartition("t", 0)).log
    found = log.read(offset, 1, log.high_watermark)
    assert isinstance(found, FileSlice)
    with open(found.path, "r+b") as file:
        file.seek(found.position + place)
        file.write(damaged)


async def error_of(member: Member, **values: Any) -> int:
    """The error of the partition in the response to a fetch."""
    ((partition,),) = [one.partitions for one in (await member.fetch(**values)).responses]
    return int(partition.error_code)


@pytest.mark.parametrize(
    ("place", "damaged"),
    [(62, b"damage"), (8, b"\0\0\0\0"), (0, bytes(61)), (0, bytes(8))],
    ids=["record", "length", "zeros", "lower offset"],
)
def test_a_damaged_record_becomes_a_dead_letter_without_its_value(tmp_path: Path, place: int, damaged: bytes) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(
            broker,
            "g",
            errors_deadletterqueue_topic_name="dlq.t",
            errors_deadletterqueue_copy_record_enable="true",
        )
        append(broker, "t", 1, 2, 3, 4)
        member = Member(client, broker)
        await member.fetch()
        damage(broker, 2, place, damaged)
        await member.acknowledge((0, 0, ACCEPT), (1, 3, REJECT))
        await until(lambda: start_offset(broker) == 4)
        letters = dead_letters(broker)
        assert [dict(record.headers)["__dlq.errors.offset"] for record in letters] == [b"1", b"2", b"3"]
        assert [record.value for record in letters][:2] == [b"v", None]

    check(tmp_path, body, errors_deadletterqueue_auto_create_topics_enable="true")


@pytest.mark.parametrize(
    ("place", "damaged"),
    [(8, b"\0\0\0\0"), (8, b"\0\x10"), (0, b"\0\0\1"), (23, b"\x80"), (0, bytes(8)), (0, bytes(77))],
    ids=["length", "too long", "offset", "negative delta", "lower offset", "zeros"],
)
def test_nothing_is_acquired_or_archived_from_a_damaged_batch_on(tmp_path: Path, place: int, damaged: bytes) -> None:
    """What is acquired behind it can't be found by a reader; a gap before it may be there only by the damage."""

    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2, 3, 4)
        damage(broker, 2, place, damaged)
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 1, 1)]
        ((partition,),) = [one.partitions for one in (await member.fetch((0, 1, ACCEPT))).responses]
        assert int(partition.error_code) in DAMAGED
        assert partition.error_message.startswith("offset 2 can't be read")
        await until(lambda: start_offset(broker) == 2)

    check(tmp_path, body)


def test_the_last_batch_of_a_segment_does_not_reach_into_the_next_one(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2, 3)
        damage(broker, 2, 7, b"\x03")
        broker.partitions.replicas.get(TopicPartition("t", 0)).log.roll(0)
        append(broker, "t", 4)
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 1, 1)]
        assert await error_of(member) == ErrorCode.CORRUPT_MESSAGE

    check(tmp_path, body)


def test_the_last_batch_of_a_log_does_not_end_behind_it(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2)
        damage(broker, 1, 7, b"\x05")
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 0, 1)]
        assert await error_of(member) == ErrorCode.CORRUPT_MESSAGE

    check(tmp_path, body)


def test_committed_records_that_only_damage_makes_aborted_are_not_passed_over(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(broker, "g", share_isolation_level="read_committed")
        append(broker, "t", 1)
        partition = broker.partitions.replicas.get(TopicPartition("t", 0))
        for producer_id in (5, 6):
            verification = partition.log.begin_verification(producer_id, 0, 0, 1)
            producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
            records = build_batch([Record(0, 1, None, b"v")], is_transactional=True, **producer)
            partition.log.append_as_leader(records, 0, 1, verification=verification)
        for producer_id, kind in ((6, ControlType.COMMIT), (5, ControlType.ABORT)):
            ids = {"producer_id": producer_id, "producer_epoch": 0, "coordinator_epoch": 0}
            partition.append_as_coordinator(memoryview(build_end_transaction_marker(kind, **ids, now_ms=1)), 1)
        damage(broker, 2, 43, (5).to_bytes(8))
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 0, 1)]
        assert await error_of(member) == ErrorCode.CORRUPT_MESSAGE
        assert start_offset(broker) <= 2

    check(tmp_path, body)


def test_a_fetch_that_continues_where_the_last_one_ended_notices_an_offset_that_went_down(tmp_path: Path) -> None:
    """It looks nothing up."""

    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1, 2)
        member = Member(client, broker)
        assert records_of(await member.fetch()) == [(0, 1, 1)]
        append(broker, "t", 3)
        damage(broker, 2, 0, bytes(8))
        append(broker, "t", 4)
        assert await error_of(member) == ErrorCode.CORRUPT_MESSAGE

    check(tmp_path, body)


def test_the_error_of_a_hole_at_the_start_of_a_log_names_the_offset(tmp_path: Path) -> None:
    """Zeros are damage, though they say magic 0 too: no message of that format is so short."""

    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        damage(broker, 0, 0, bytes(61))
        ((partition,),) = [one.partitions for one in (await Member(client, broker).fetch()).responses]
        assert partition.error_code == ErrorCode.CORRUPT_MESSAGE
        assert partition.error_message.startswith("offset 0 can't be read")

    check(tmp_path, body)


@pytest.mark.parametrize("max_bytes", [1, 40])
def test_a_damaged_batch_is_an_error_for_members_that_want_few_bytes(tmp_path: Path, max_bytes: int) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        append(broker, "t", 1)
        damage(broker, 0, 8, bytes(4))
        assert await error_of(Member(client, broker), max_bytes=max_bytes) == ErrorCode.CORRUPT_MESSAGE

    check(tmp_path, body)


def test_dead_letters_wait_for_a_topic_that_allows_them_also_under_another_leader(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(broker, "g", errors_deadletterqueue_topic_name="dlq.t")
        append(broker, "t", 1, 2)
        member = Member(client, broker)
        await member.fetch()
        await member.acknowledge((0, 0, REJECT))
        broker.share_leaders.partitions.released(TopicPartition("t", 0))
        assert records_of(await member.fetch(wait_ms=1000)) == [(1, 1, 1)]
        assert start_offset(broker) == 0
        await create(broker, NewTopic("dlq.t", num_partitions=1))
        await configure(broker, "dlq.t", errors_deadletterqueue_group_enable="true")
        await until(lambda: start_offset(broker) == 1)
        assert len(dead_letters(broker)) == 1

    check(tmp_path, body)


@pytest.mark.parametrize("name", ["__letters", "letters"])
def test_dead_letters_are_not_written_to_a_topic_whose_name_does_not_allow_it(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(broker, "g", errors_deadletterqueue_topic_name=name)
        append(broker, "t", 1)
        member = Member(client, broker)
        await member.fetch()
        await member.acknowledge((0, 0, REJECT))
        await until(lambda: "its name must begin with 'dlq.'" in caplog.text)
        assert name not in broker.image.topics
        assert start_offset(broker) == 0, "the record waits until the group has another topic"
        await configure(broker, "g", errors_deadletterqueue_topic_name="dlq.t")
        await until(lambda: start_offset(broker) == 1)

    check(tmp_path, body, errors_deadletterqueue_auto_create_topics_enable="true")


def test_dead_letters_are_written_after_the_last_member_has_left(tmp_path: Path) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await configure(broker, "g", errors_deadletterqueue_topic_name="dlq.t")
        append(broker, "t", 1)
        member = Member(client, broker)
        await member.fetch()
        await member.acknowledge((0, 0, REJECT), share_session_epoch=-1)
        leaders = broker.share_leaders.partitions._leaders
        assert len(leaders) == 1
        await create(
            broker, NewTopic("dlq.t", num_partitions=1, configs={"errors.deadletterqueue.group.enable": "true"})
        )
        await until(lambda: not leaders)
        assert len(dead_letters(broker)) == 1
        (state,) = broker.shares.core.states.values()
        assert state.state_batches == (StateBatch(0, 0, 4, 1),)

    check(tmp_path, body)
