"""Pools of Ray actors that process the records of a share group: what they do while actors fail and die."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from ray.exceptions import RayError

from benchmarks.pool import Bench
from rayka.client.cluster import Cluster
from rayka.client.share.records import ShareRecord
from rayka.errors import RaykaError
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.testing import wait_until

TASKS = 100
TASK_S = 0.01
HELD_FROM = 25
pytestmark = pytest.mark.timeout(400)  # Starting actors takes long on a busy machine.
ACTORS = 4
KILLED = 2
TIMEOUT_S = 150.0
TIMEOUT_MS = 1000 * TIMEOUT_S


def prepare(cluster: Cluster, name: str, count: int, **configs: str) -> None:
    """A topic of one partition with records, and a group of the same name that reads from its beginning."""
    cluster.admin().create_topic(name, partitions=1)
    settings = {"share.auto.offset.reset": "earliest"} | {key.replace("_", "."): text for key, text in configs.items()}
    cluster.admin().alter_configs(ConfigResource(ResourceType.GROUP, name), settings)
    write(cluster, name, count)


def write(cluster: Cluster, topic: str, count: int) -> None:
    with cluster.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(count)])


def left_over(cluster: Cluster, name: str) -> list[ShareRecord]:
    """What another member of the group gets in a short time."""
    with cluster.share_consumer(name, [name]) as consumer:
        return consumer.poll(timeout_ms=1500)


def await_left_over(cluster: Cluster, name: str, count: int) -> None:
    """Until another member of the group has got so many records."""
    found: list[ShareRecord] = []
    with cluster.share_consumer(name, [name]) as consumer:

        def are_found() -> bool:
            found.extend(consumer.poll(timeout_ms=500))
            return len(found) >= count

        wait_until(are_found, TIMEOUT_S, f"{count} records that are left over")
    assert len({record.offset for record in found}) == count


class Journal:
    """Writes down which process begins and ends which record. From `HELD_FROM` on they end once the gate is open."""

    def __init__(self, directory: Path, gate: Path) -> None:
        self.directory, self.gate = directory, gate

    def __call__(self, record: ShareRecord) -> None:
        self.write("began", record)
        if record.offset >= HELD_FROM:
            wait_until(self.gate.exists, TIMEOUT_S, "the gate is open")
        time.sleep(TASK_S)
        self.write("ended", record)

    def write(self, what: str, record: ShareRecord) -> None:
        with (self.directory / str(os.getpid())).open("a") as file:
            file.write(f"{what} {record.offset}\n")

    def lines(self) -> list[tuple[str, str, int]]:
        """All that was written: process, what, offset."""
        lines = [(path.name, *line.split()) for path in self.directory.iterdir() for line in path.open()]
        return [(process, what, int(offset)) for process, what, offset in lines]

    def holders(self) -> list[str]:
        """The processes that have a record and wait for the gate."""
        return sorted({process for process, what, offset in self.lines() if what == "began" and offset >= HELD_FROM})


@pytest.mark.parametrize("name", ["by-socket", "by-calls"])
def test_each_record_is_acknowledged_once_while_actors_are_killed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "by-calls":  # as on another node: actors can't listen at a path that is too long for a socket
        (long_path := tmp_path / ("x" * 100)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long_path))
    journal = Journal(tmp_path / "journal", tmp_path / "gate")
    journal.directory.mkdir()
    prepare(cluster, name, 0)
    with cluster.process(name, name, journal, actors=ACTORS) as pool:
        wait_until(lambda: pool.ready_actors == ACTORS, TIMEOUT_S, "the actors have started")
        write(cluster, name, TASKS)
        wait_until(lambda: len(journal.holders()) == ACTORS, TIMEOUT_S, "each actor has a record")
        for process in journal.holders()[:KILLED]:
            os.kill(int(process), signal.SIGKILL)
        journal.gate.touch()
        wait_until(lambda: pool.counts.accepted == TASKS, TIMEOUT_S, "all is done")
        counts = pool.join(timeout_ms=TIMEOUT_MS)
    assert (counts.accepted, counts.rejected, counts.lost) == (TASKS, 0, 0)
    assert counts.released == KILLED if name == "by-socket" else KILLED <= counts.released <= TASKS
    ended = Counter(offset for _, what, offset in journal.lines() if what == "ended")
    assert ended.keys() == set(range(TASKS))
    assert left_over(cluster, name) == []


def test_an_actor_that_is_stopped_is_killed_and_keeps_no_record(cluster: Cluster, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", tmp_path / "gate")
    journal.directory.mkdir()
    prepare(cluster, "stopped", 0)
    with cluster.process("stopped", "stopped", journal, actors=2, max_processing_ms=5000) as pool:
        wait_until(lambda: pool.ready_actors == 2, TIMEOUT_S, "the actors have started")
        write(cluster, "stopped", TASKS)
        wait_until(lambda: len(journal.holders()) == 2, TIMEOUT_S, "each actor has a record")
        stopped = journal.holders()[0]
        os.kill(int(stopped), signal.SIGSTOP)
        journal.gate.touch()
        wait_until(lambda: pool.counts.accepted == TASKS, TIMEOUT_S, "all is done")
        wait_until(lambda: pool.ready_actors == 2, TIMEOUT_S, "another actor has taken its place")
        wait_until(lambda: not is_running(stopped), TIMEOUT_S, "the actor is killed")
    assert left_over(cluster, "stopped") == []


def is_running(process: str) -> bool:
    """Whether there is such a process, stopped or not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second one if it ends between the opening and the read
        return False


@pytest.mark.alone
def test_a_hundred_short_tasks_take_little_longer_than_the_best_schedule_though_actors_are_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    bench = Bench(cluster, str(tmp_path))
    bench.run()
    ratios = [bench.run(bench.victims())["ratio"] for _ in range(5)]
    bench.close()
    assert bench.left_over() == 0
    assert min(ratios) <= 1.3, ratios  # whatever else the machine does only makes it slower


def test_records_come_back_or_become_dead_letters_by_their_error(cluster: Cluster) -> None:
    prepare(cluster, "orders", 3, errors_deadletterqueue_topic_name="dlq.orders")

    def check(record: ShareRecord) -> None:
        if record.value == b"1" and record.delivery_count < 3:
            raise ConnectionError("not yet")
        if record.value == b"2":
            raise ValueError("no such order")

    with cluster.process("orders", "orders", check, delay_ms=100) as pool:
        wait_until(lambda: pool.counts.accepted + pool.counts.rejected == 3, TIMEOUT_S, "all records are done")
        pool.join(idle_ms=100, timeout_ms=TIMEOUT_MS)
        assert (pool.counts.accepted, pool.counts.released, pool.counts.rejected) == (2, 2, 1)
    # The topic is created for the first dead letter, after the record is rejected.
    wait_until(lambda: "dlq.orders" in cluster.admin().list_topics(), TIMEOUT_S, "there is a dead letter")
    with cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_MS) as consumer:
        consumer.assign([("dlq.orders", 0)])
        headers = dict(next(iter(consumer)).headers)
    assert headers["__dlq.errors.exception.class.name"] == b"builtins.ValueError"
    assert b'raise ValueError("no such order")' in (headers["__dlq.errors.exception.stacktrace"] or b"")


def test_a_record_stays_locked_however_long_it_takes(cluster: Cluster) -> None:
    prepare(cluster, "films", 1, share_record_lock_duration_ms="3000")
    with cluster.process("films", "films", lambda record: time.sleep(5), actors=1) as pool:
        pool.join(idle_ms=100, timeout_ms=TIMEOUT_MS)
        assert (pool.counts.accepted, pool.counts.lost) == (1, 0)


def test_closing_a_pool_releases_records_that_are_not_processed_in_time(cluster: Cluster, tmp_path: Path) -> None:
    prepare(cluster, "slow", 3)

    def wait(record: ShareRecord) -> None:
        (tmp_path / "begun").touch()
        time.sleep(600)

    with cluster.process("slow", "slow", wait, actors=1) as pool:
        wait_until((tmp_path / "begun").exists, TIMEOUT_S, "a record is being processed")
        pool.close(timeout_ms=100)
    await_left_over(cluster, "slow", 3)


class Broken:
    """No instance of it can be made."""

    def __init__(self) -> None:
        raise RuntimeError("no model")


def test_a_pool_whose_actors_can_not_start_ends_with_their_error(cluster: Cluster) -> None:
    prepare(cluster, "broken", 1)
    pool = cluster.process("broken", "broken", Broken, actors=1)
    with pytest.raises(RayError, match="no model"):
        pool.join(timeout_ms=TIMEOUT_MS)
    with pytest.raises(RayError, match="no model"):
        pool.close()
    await_left_over(cluster, "broken", 1)


@pytest.mark.parametrize(("fn", "actors", "message"), [("no function", 1, "fn must be"), (print, 0, "at least 1")])
def test_invalid_arguments_of_a_pool_are_refused(cluster: Cluster, fn: object, actors: int, message: str) -> None:
    with pytest.raises(RaykaError, match=message):
        cluster.process("none", "none", fn, actors=actors)  # type: ignore[arg-type]
