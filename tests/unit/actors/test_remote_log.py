"""Copying and deleting by one actor while others decide differently: nothing is lost, and no object stays for ever."""

from __future__ import annotations

import asyncio
import re
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.actors.remote.metadata_topic import METADATA_TOPIC, MetadataTopic
from rayka.actors.remote.remote_log import RemoteLog
from rayka.actors.replica.disk import DiskThread
from rayka.config import BrokerConfig, LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import TopicResult
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, iter_headers, stamp
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch, read_records, seal_batch
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.remote.directory_store import MARKER, DirectoryStore
from rayka.storage.remote.metadata_records import decode, encode
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from rayka.types import (
    AppendParams,
    AppendRequest,
    AppendResult,
    EpochEndOffset,
    EpochQuery,
    FetchPartition,
    FetchResult,
    TopicIdPartition,
    TopicPartition,
)
from tests.support.logs import NOW_MS
from tests.support.tiered import TieredLog

CONFIG = LogConfig(
    remote_storage_enable=True, internal_segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1,
    local_retention_bytes=1_500,
)  # fmt: skip
SEGMENT_ID = re.compile(r"-([0-9a-f]{32})\.")
States = RemoteLogSegmentState


class MetadataPartition:
    """The leader of the only partition of the metadata topic."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.log_start_offset = self.leader_epoch = 0

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.batches)

    def write(self, records: bytes) -> None:
        batch = bytearray(records)
        stamp(batch, 0, self.log_end_offset, self.leader_epoch)
        self.batches.append(bytes(batch))

    def truncate(self, offset: int) -> None:
        """Another leader begins without the records from `offset` on."""
        del self.batches[offset - self.log_start_offset :]
        self.leader_epoch += 1

    def delete_records(self, offset: int) -> None:
        del self.batches[: offset - self.log_start_offset]
        self.log_start_offset = offset

    async def append(self, requests: list[AppendRequest], _: AppendParams) -> list[AppendResult]:
        self.write(bytes(requests[0].records))
        return [AppendResult(0)]

    async def fetch(self, partitions: list[FetchPartition], **_: object) -> list[FetchResult]:
        start, offset = self.log_start_offset, partitions[0].fetch_offset
        if not start <= offset <= self.log_end_offset:
            return [FetchResult(int(ErrorCode.OFFSET_OUT_OF_RANGE), log_start_offset=start)]
        return [FetchResult(0, log_start_offset=start, records=b"".join(self.batches[offset - start :]))]

    async def epoch_end_offsets(self, queries: list[EpochQuery]) -> list[EpochEndOffset]:
        epochs = [next(iter_headers(batch))[1].partition_leader_epoch for batch in self.batches]
        known = [epoch for epoch in epochs if epoch <= queries[0].leader_epoch]
        return [EpochEndOffset(0, max(known, default=-1), self.log_start_offset + len(known))]


class Actor:
    """The remote log of one partition of 200 records, none of them copied. A copy waits at `may_copy`."""

    def __init__(self, path: Path) -> None:
        self.tiered = TieredLog(path, CONFIG)
        self.tiered.append(200)
        self.log, self.store = self.tiered.log, self.tiered.store
        self.log.flush()
        self.is_copying, self.may_copy = threading.Event(), threading.Event()
        self.put, self.store.put = self.store.put, self._wait_and_put  # type: ignore[method-assign]
        self.partition = Partition(self.log, self.tiered.partition.topic_id)
        self.partition.become_leader(9)
        self.metadata = MetadataPartition()
        replicas = Replicas()
        replicas.add(self.partition)
        self.topic_id: uuid.UUID | None = self.partition.topic_id
        self.image = SimpleNamespace(
            topics={METADATA_TOPIC: self._topic()},
            topic_by_id=lambda topic_id: topic_id == self.topic_id or None,
            partition=lambda _: self.metadata,
            deleted_tiered_topics={},
        )
        tasks = "remote.log.manager.task."
        config = BrokerConfig.parse({f"{tasks}interval.ms": "10", f"{tasks}retry.backoff.ms": "10"})
        broker: Any = SimpleNamespace(config=config, image=self.image, partitions=self.metadata, node_id=0)
        directory: Any = SimpleNamespace(write_log_starts=lambda _: None)
        self.disk = DiskThread()
        self.replicas = replicas
        self.remote_log = RemoteLog(
            "actor", broker, self._catch_up, replicas, directory, self.disk, self.store, lambda _: None
        )

    @staticmethod
    def _topic() -> Any:
        return SimpleNamespace(topic_id=uuid.uuid4(), partitions=[SimpleNamespace(partition=0, leader_actor="another")])

    def lead_metadata(self) -> None:
        """This actor leads the metadata topic too."""
        self.image.topics[METADATA_TOPIC].partitions[0].leader_actor = "actor"

    async def _catch_up(self) -> None:
        self.on_catch_up()

    def on_catch_up(self) -> None:
        """What this process learns from the controller when it asks."""

    def write(self, *events: RemoteLogMetadataEvent) -> None:
        """Another actor writes events."""
        for event in events:
            self.metadata.write(build_batch([Record(0, NOW_MS, None, encode(event))]))

    def delete_as_another_leader(self, segment: RemoteLogSegmentMetadata) -> None:
        for state in (States.DELETE_SEGMENT_STARTED, States.DELETE_SEGMENT_FINISHED):
            self.write(RemoteLogSegmentMetadataUpdate(segment.partition, segment.segment_id, 1, NOW_MS, state))

    def _wait_and_put(self, name: str, pieces: Iterable[bytes]) -> None:
        if name.endswith(".log"):
            self.is_copying.set()
            assert self.may_copy.wait(30)
        self.put(name, pieces)

    def segments_in_store(self) -> set[str]:
        return {SEGMENT_ID.search(name).group(1) for name in self.store.list("")}  # type: ignore[union-attr]

    def events(self) -> list[Any]:
        """Everything that the metadata topic says."""
        return [decode(record.value or b"") for batch in self.metadata.batches for record in read_records(batch)]

    async def remote(self) -> RemotePartition:
        return await self.remote_log.known(self.partition)


def run(
    path: Path, check: Callable[[Actor], Coroutine[Any, Any, None]], prepare: Callable[[Actor], None] = lambda _: None
) -> None:
    async def main() -> None:
        actor = Actor(path)
        prepare(actor)
        actor.remote_log.start()
        try:
            await asyncio.wait_for(check(actor), 60)
        finally:
            actor.may_copy.set()
            await actor.remote_log.stop()
            actor.disk.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """`run` bounds the wait."""
    while not condition():
        await asyncio.sleep(0.01)


def test_a_topic_that_leaves_tiered_storage_while_it_is_copied_leaves_no_objects(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await until(actor.is_copying.is_set)
        actor.log.configure(replace(CONFIG, remote_storage_enable=False, remote_log_delete_on_disable=True))
        written = len(actor.metadata.batches)
        await asyncio.sleep(0.05)  # what would be decided wrongly is decided in one of these rounds
        actor.may_copy.set()
        await until(lambda: len(actor.metadata.batches) >= written + 3)
        await until(lambda: actor.events()[-1].state is States.DELETE_SEGMENT_FINISHED)

        assert list(actor.store.list("")) == []
        while (await actor.remote()).segments:  # the actor reads its own event after it has written it
            await asyncio.sleep(0.01)
        assert actor.remote_log.done.copied_segments == 1

    run(tmp_path, check)


def test_objects_that_come_after_another_leader_deleted_their_segment_are_deleted(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await until(actor.is_copying.is_set)
        (segment,) = (await actor.remote()).segments
        actor.delete_as_another_leader(segment)
        actor.may_copy.set()
        await until(lambda: actor.log.copied_offset > 150)
        await until(lambda: segment.segment_id.hex not in actor.segments_in_store())

        in_store, remote = actor.segments_in_store(), await actor.remote()
        assert in_store <= {each.segment_id.hex for each in remote.segments}

    run(tmp_path, check)


def test_a_copy_that_fails_after_another_leader_deleted_its_segment_leaves_no_objects(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        def fail(*_: object) -> None:
            assert actor.may_copy.wait(30)
            raise OSError("the store fails")

        await until(actor.is_copying.is_set)
        (segment,) = (await actor.remote()).segments
        actor.put = fail  # type: ignore[method-assign]
        assert segment.segment_id.hex in actor.segments_in_store()
        actor.delete_as_another_leader(segment)
        actor.may_copy.set()
        await until(lambda: segment.segment_id.hex not in actor.segments_in_store())

    run(tmp_path, check)


async def copy_all(actor: Actor) -> None:
    """Copy all that can be, and let the oldest segments be in the store alone."""
    actor.may_copy.set()
    await until(lambda: actor.log.copied_offset == actor.log.segments[-1].base_offset - 1)
    await until(lambda: not actor.remote_log._copying and not actor.remote_log._put)
    actor.log.delete_old_segments(NOW_MS)
    assert actor.log.local_log_start_offset > 100


def test_a_leader_that_was_paused_neither_copies_nor_deletes_when_it_wakes_up(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await copy_all(actor)
        written = len(actor.metadata.batches)
        actor.on_catch_up = actor.partition.resign  # type: ignore[method-assign]
        actor.tiered.append(200)
        actor.log.flush()
        actor.log.configure(replace(CONFIG, retention_bytes=0))
        await until(lambda: actor.partition.leader_epoch < 0)
        await until(lambda: not actor.remote_log._under_way)

        assert len(actor.metadata.batches) == written

    run(tmp_path, check)


def test_a_leader_that_wakes_up_within_a_copy_does_not_complete_it(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await until(actor.is_copying.is_set)
        actor.on_catch_up = lambda: actor.partition.become_leader(10)  # type: ignore[method-assign]
        actor.may_copy.set()
        await until(lambda: actor.log.copied_offset > 150)

        states = [event.state for event in actor.events() if isinstance(event, RemoteLogSegmentMetadataUpdate)]
        assert actor.remote_log.done.failures == 1
        assert states[0] is not States.COPY_SEGMENT_FINISHED
        in_store, remote = actor.segments_in_store(), await actor.remote()
        assert in_store <= {each.segment_id.hex for each in remote.segments}

    run(tmp_path, check)


def test_offsets_that_an_emptied_metadata_topic_no_longer_names_are_not_given_up(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await copy_all(actor)
        in_store = actor.segments_in_store()
        actor.metadata.delete_records(actor.metadata.log_end_offset)
        actor.metadata.truncate(actor.metadata.log_start_offset)
        actor.partition.become_leader(10)
        await until(lambda: actor.remote_log.done.failures >= 2)

        assert actor.log.log_start_offset == 0
        assert actor.segments_in_store() == in_store
        actor.log.delete_records(actor.log.local_log_start_offset)
        with pytest.raises(RaykaError, match="the remote store has orders-"):
            await actor.remote_log._check_metadata(actor.partition)

    run(tmp_path, check)


def test_a_metadata_topic_that_lost_its_end_is_read_again_and_takes_no_copy_away(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await copy_all(actor)
        in_store = actor.segments_in_store()
        states = [event.state for event in actor.events()]
        finished = [number for number, state in enumerate(states) if state is States.COPY_SEGMENT_FINISHED]
        actor.metadata.truncate(finished[2])
        actor.write(actor.events()[0])
        actor.partition.become_leader(10)
        await until(lambda: actor.remote_log.done.failures >= 2)

        third = (await actor.remote()).segments[2]
        assert actor.log.log_start_offset == 0
        assert actor.segments_in_store() == in_store
        with pytest.raises(RaykaError, match=f"offsets {third.start_offset} to "):
            await actor.remote_log._check_metadata(actor.partition)

    run(tmp_path, check)


def test_a_batch_that_makes_no_sense_does_not_hide_those_after_it(tmp_path: Path) -> None:
    """Clients with the right to write to the topic can send one; the broker looks at no records of it."""
    segment_id = uuid.uuid4()

    def prepare(actor: Actor) -> None:
        for records, codec in ((b"\xff" * 100, Codec.NONE), (bytes(5 << 20), Codec.GZIP)):
            batch = bytearray(RECORD_BATCH_OVERHEAD) + records
            actor.metadata.write(seal_batch(batch, record_count=1, base_timestamp=0, max_timestamp=0, codec=codec))
        epochs = (EpochEntry(0, 0),)
        actor.write(RemoteLogSegmentMetadata(actor.tiered.partition, segment_id, 0, 9, 1, 0, 0, epochs, 100))

    async def check(actor: Actor) -> None:
        assert (await actor.remote()).get(segment_id) is not None

    run(tmp_path, check, prepare)


def test_a_metadata_topic_that_was_deleted_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await copy_all(actor)
        in_store = actor.segments_in_store()
        actor.metadata.batches.clear()
        actor.image.topics[METADATA_TOPIC] = actor._topic()
        actor.partition.become_leader(10)
        await until(lambda: actor.remote_log.done.failures >= 2)

        assert actor.log.log_start_offset == 0
        assert actor.segments_in_store() == in_store
        assert actor.metadata.batches == []

    run(tmp_path, check)


def test_a_metadata_topic_that_is_refused_leaves_no_store(tmp_path: Path) -> None:
    """The directory may be a mount point where nothing is mounted yet: it must not be taken for the store later."""
    answers = [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE, ErrorCode.NONE]
    store = DirectoryStore(RealFiles(), str(tmp_path / "store"))

    async def create_topics(*_: object, **__: object) -> list[TopicResult]:
        return [TopicResult(METADATA_TOPIC, error=answers.pop(0))]

    async def create_store() -> None:
        store.create()

    async def check() -> None:
        partition = TopicIdPartition(uuid.uuid4(), TopicPartition("orders", 0))
        broker: Any = SimpleNamespace(
            image=SimpleNamespace(topics={}), controller=SimpleNamespace(create_topics=create_topics)
        )
        topic = MetadataTopic(broker, create_store)
        with pytest.raises(RaykaError, match=METADATA_TOPIC):
            await topic.read(partition)
        assert not (tmp_path / "store").exists()
        with pytest.raises(RaykaError, match="does not exist yet"):
            await topic.read(partition)
        assert [path.name for path in (tmp_path / "store").iterdir()] == [MARKER]

    asyncio.run(check())


def test_a_log_start_from_before_tiered_storage_asks_for_nothing_in_the_store(tmp_path: Path) -> None:
    def prepare(actor: Actor) -> None:
        actor.log.local_log_start_offset = 20

    async def check(actor: Actor) -> None:
        actor.may_copy.set()
        await until(lambda: actor.log.copied_offset > 150)

        assert actor.log.log_start_offset == 20
        assert actor.remote_log.done.failures == 0

    run(tmp_path, check, prepare)


def test_a_topic_that_was_deleted_while_its_actor_was_down_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await copy_all(actor)
        actor.replicas.remove(actor.partition.topic_partition)
        actor.topic_id = None
        actor.lead_metadata()
        await asyncio.sleep(0.05)
        assert actor.segments_in_store()  # it may be the metadata of the cluster that is wrong
        actor.image.deleted_tiered_topics[actor.partition.topic_id] = None
        await until(lambda: not list(actor.store.list("")))
        await until(lambda: not actor.remote_log._topic.known_in(0))

    run(tmp_path, check)


def test_a_partition_of_the_metadata_topic_that_cannot_be_read_keeps_no_deleted_topic_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(actor: Actor) -> None:
        await copy_all(actor)
        actor.replicas.remove(actor.partition.topic_partition)
        actor.topic_id = None
        actor.image.deleted_tiered_topics[actor.partition.topic_id] = None
        topic = actor.remote_log._topic
        read_to_end, is_refused = topic.read_to_end, asyncio.Event()

        async def read(number: int) -> None:
            if number == 7:
                is_refused.set()
                raise RaykaError(ErrorCode.CORRUPT_MESSAGE, "a batch is damaged")
            await read_to_end(number)

        monkeypatch.setattr(topic, "read_to_end", read)
        monkeypatch.setattr(topic, "led_by", lambda _: [7, 0])
        await is_refused.wait()
        await until(lambda: not list(actor.store.list("")))

    run(tmp_path, check)


def test_segments_go_with_the_log_start_where_their_deletion_was_taken_back(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await copy_all(actor)
        actor.log.configure(replace(CONFIG, remote_storage_enable=False))
        await asyncio.sleep(0.05)
        assert actor.log.log_start_offset == 0
        assert actor.segments_in_store()
        actor.log.delete_records(actor.log.high_watermark)
        await until(lambda: not list(actor.store.list("")))

    run(tmp_path, check)
