"""A coordinator's log keeps what counts, and is written anew only after much that does not."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from rayka.actors.coordinator_log import CoordinatorLog
from rayka.actors.replica_server import ReplicaServer
from rayka.config import LogConfig
from rayka.storage.files import RealFiles
from rayka.storage.log_directory import LogDirectory
from rayka.storage.partition import Partition
from rayka.storage.replicas import Replicas
from rayka.types import TopicPartition

NAME = TopicPartition("__consumer_offsets", 0)


def test_the_log_is_shortened_once_and_keeps_the_last_value_of_each_key(tmp_path: Path) -> None:
    async def check() -> None:
        directory = LogDirectory.open(str(tmp_path), RealFiles(), now_ms=0)
        partition = Partition(directory.open_log(NAME, uuid.uuid4(), LogConfig(), now_ms=0), uuid.uuid4())
        partition.become_leader(0)
        replicas = Replicas()
        replicas.add(partition)
        server = ReplicaServer(replicas, directory, lambda: None)
        log = CoordinatorLog(partition, server)
        value = bytes(100_000)
        for number in range(300):
            log.append([(b"k%d" % (number % 3), b"%d:" % number + value)])
        log.append([(b"k0", None)])
        assert log.shorten()
        assert not log.shorten(), "nothing was written since"
        again = CoordinatorLog(partition, server)
        read = [(key, value[:4]) for records in again.read() for _, key, value in records if value is not None]
        assert read == [(b"k1", b"298:"), (b"k2", b"299:")]
        assert not again.shorten(), "a restart does not write it all anew"

    asyncio.run(check())
