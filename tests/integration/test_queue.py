"""`rayka.Queue` among Ray's tasks and actors, some of which are killed."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

import rayka
from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from rayka.queue import Empty, Queue, put_journal
from rayka.storage.journal.layout import LARGE_CAPACITY
from rayka.testing import wait_until

ENOUGH_S = 90.0
LEASE_MS = 3000


def leased(cluster: Cluster, name: str, **settings: Any) -> Queue:
    """A queue with leases shorter than a program may ask for."""
    queue = Queue(name=name, **settings)
    group = rayka.client.ConfigResource(rayka.client.ResourceType.GROUP, name)
    cluster.admin().alter_configs(group, {"share.record.lock.duration.ms": LEASE_MS})
    return queue


@ray.remote(num_cpus=0, max_concurrency=4)
class Worker:
    """A program that uses queues, and may be killed."""

    def get(self, queue: Queue, count: int = 1) -> list[Any]:
        return [queue.get(timeout=ENOUGH_S) for _ in range(count)]

    def put(self, queue: Queue, *items: Any) -> None:
        for item in items:
            queue.put(item)

    def hold(self, queue: Queue, count: int) -> list[Any]:
        """Get items and keep the handle, so that their leases do not end with it."""
        self._held = [*getattr(self, "_held", []), queue]
        return self.get(queue, count)

    def get_by_name(self, name: str) -> Any:
        return rayka.Queue(name=name).get(timeout=ENOUGH_S)


@pytest.fixture(scope="module")
def workers(cluster: Cluster) -> list[Any]:
    """Two processes."""
    return [Worker.remote() for _ in range(2)]


def test_tasks_and_actors_share_a_queue(workers: list[Any]) -> None:
    queue = Queue()
    gets = [worker.get.remote(queue, 5) for worker in workers]
    ray.get([worker.put.remote(queue, *range(5)) for worker in workers], timeout=ENOUGH_S)
    assert sorted(itertools.chain.from_iterable(ray.get(gets, timeout=ENOUGH_S))) == sorted([*range(5)] * 2)
    assert queue.empty()
    queue.shutdown()


def test_items_are_whatever_ray_can_send(workers: list[Any]) -> None:
    factor = 3

    class Local:
        def times(self) -> int:
            return factor

    queue = Queue()
    reference = ray.put("in the object store")
    items = (None, b"\x00" * 2_000_000, {"a": [1, 2]}, lambda: factor, Local(), reference, queue)
    ray.get(workers[0].put.remote(queue, *items[:4]), timeout=ENOUGH_S)
    for item in items[4:]:
        queue.put(item)
    assert queue.get() is None
    assert queue.get() == b"\x00" * 2_000_000
    assert queue.get() == {"a": [1, 2]}
    assert queue.get()() == 3
    assert queue.get().times() == 3
    assert ray.get(queue.get(), timeout=ENOUGH_S) == "in the object store"
    assert queue.get().name == queue.name
    queue.shutdown()


def test_a_named_queue_is_the_same_for_everybody_and_keeps_its_items(cluster: Cluster, workers: list[Any]) -> None:
    Queue(name="jobs").put("job")
    assert ray.get(workers[0].get_by_name.remote("jobs"), timeout=ENOUGH_S) == "job"
    Queue(name="jobs").shutdown()
    assert "jobs" not in cluster.admin().list_topics()


def test_items_of_a_killed_process_are_got_by_others(cluster: Cluster) -> None:
    queue, program = leased(cluster, "held"), leased(cluster, "programs", lease="program")
    for each in (queue, program):
        each.put_nowait_batch(range(5))
    worker = Worker.remote()
    assert ray.get([worker.hold.remote(each, 3) for each in (queue, program)], timeout=ENOUGH_S) == [[0, 1, 2]] * 2
    for each in (queue, program):
        wait_until(lambda each=each: each.qsize() == 2, ENOUGH_S, "the worker gives back what it does not take")
    ray.kill(worker)
    assert sorted(queue.get(timeout=ENOUGH_S) for _ in range(3)) == [2, 3, 4]  # 0 and 1 were done with the next get
    ends = Queue(name="programs", lease="program")
    assert sorted(ends.get(timeout=ENOUGH_S) for _ in range(5)) == [0, 1, 2, 3, 4]
    ends.close()
    for each in (queue, program):
        with pytest.raises(Empty):
            each.get(timeout=1.5 * LEASE_MS / 1000)
        each.shutdown()


def test_items_survive_the_death_of_the_leader(cluster: Cluster) -> None:
    queue = Queue(name="leaders")
    queue.put_nowait_batch(range(50))
    taken = [queue.get() for _ in range(10)]
    loop, depths = queue._here.loop, queue._here.topic.depths
    wait_until(
        lambda: loop.run(depths())[0] == (40, 1, 9), ENOUGH_S, "nine are done, one is leased, none fetched ahead"
    )
    kill_leader(cluster, "leaders")
    queue.put(50)
    while len(set(taken)) < 51:
        taken.append(queue.get(timeout=ENOUGH_S))
    assert set(taken) == {*range(51)}
    assert len(taken) <= 52, "at most the item that was leased comes again"
    queue.shutdown()


@ray.remote(num_cpus=0)
class QuickProducer:
    """Puts numbers one by one, and writes down after each how many `put` has returned."""

    def __init__(self) -> None:
        put_journal._QUICK_S = 3600.0  # it gets a journal on a slow machine too

    def process_id(self) -> int:
        return os.getpid()

    def put(self, queue: Queue, path: str, count: int, size: int = 0) -> int:
        """With a size, each number is in a list with so many bytes."""
        data = bytes(size)
        with open(path, "wb", buffering=0) as file:
            for number in range(count):
                queue.put([number, data] if size else number)
                os.pwrite(file.fileno(), (number + 1).to_bytes(8), 0)
        return count


def put_so_far(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[:8]) if path.exists() else 0


def leader_of(cluster: Cluster, name: str) -> str:
    actor = cluster._connection.broker.image.topics[name].partitions[0].leader_actor
    assert actor is not None
    return actor


def journals_of(cluster: Cluster, name: str) -> list[Path]:
    directory = cluster._connection.broker.image.actors[leader_of(cluster, name)].log_dir
    return sorted((Path(directory) / f"{name}-0").glob("*.journal*"))


def everything(queue: Queue) -> list[Any]:
    items = []
    while True:
        try:
            items.append(queue.get(timeout=2.0))
        except Empty:
            return items


def kill_leader(cluster: Cluster, name: str) -> None:
    """kill -9 of the leader's process; returns when another one leads."""
    broker, actor = cluster._connection.broker, leader_of(cluster, name)
    start = broker.image.actors[actor].epoch
    ray.kill(ray.get_actor(actor, namespace="rayka"), no_restart=False)
    wait_until(lambda: broker.image.actors[actor].epoch > start, ENOUGH_S, "the leader is another process")


def kill_with_leader(cluster: Cluster, queue: Queue, process_id: int, path: Path) -> int:
    """kill -9 of the leader's process and of the producer's; returns the puts, once the next leader has read them."""
    leader = ray.get_actor(leader_of(cluster, queue.name), namespace="rayka")
    for killed in (ray.get(leader.process_id.remote()), process_id):
        os.kill(killed, signal.SIGKILL)
    count = put_so_far(path)
    wait_until(lambda: queue.lag() >= count, ENOUGH_S, "the next leader has read the journal")
    return count


def test_a_program_that_puts_quickly_gets_a_journal_which_goes_with_it(cluster: Cluster, tmp_path: Path) -> None:
    queue, producer = Queue(name="put-quick"), QuickProducer.remote()
    ray.get(producer.put.remote(queue, str(tmp_path / "put"), 2000), timeout=ENOUGH_S)
    assert queue.qsize() == 2000
    wait_until(lambda: len(journals_of(cluster, "put-quick")) == 1, ENOUGH_S, "the journal is there")
    queue.put("the last one")
    assert queue.get_nowait_batch(2001) == [*range(2000), "the last one"]
    queue.shutdown()


def test_nothing_that_was_put_is_lost_with_the_producer(cluster: Cluster, tmp_path: Path) -> None:
    queue, producer, path = Queue(name="put-killed"), QuickProducer.remote(), tmp_path / "put"
    process_id = ray.get(producer.process_id.remote())
    producer.put.remote(queue, str(path), 10_000_000)
    wait_until(lambda: put_so_far(path) > 5000, ENOUGH_S, "the producer is in the middle")
    os.kill(process_id, signal.SIGKILL)
    count = put_so_far(path)
    items = everything(queue)
    assert items in ([*range(count)], [*range(count + 1)]), "the last item was put, and the program did not know it"
    queue.shutdown()


def test_nothing_that_was_put_is_lost_or_doubled_with_the_leader(cluster: Cluster, tmp_path: Path) -> None:
    queue, producer, path = Queue(name="put-led"), QuickProducer.remote(), tmp_path / "put"
    put = producer.put.remote(queue, str(path), 60_000)
    for kill in range(1, 4):
        wait_until(lambda kill=kill: put_so_far(path) > 10_000 * kill, ENOUGH_S, "the producer is in the middle")
        kill_leader(cluster, "put-led")
    assert ray.get(put, timeout=ENOUGH_S) == 60_000
    wait_until(lambda: queue.lag() == 60_000, ENOUGH_S, "the leader has read the journal")
    items = everything(queue)
    assert items == [*range(60_000)]
    queue.shutdown()


def test_nothing_that_was_put_is_lost_with_the_producer_and_the_leader(cluster: Cluster, tmp_path: Path) -> None:
    queue, producer, path = Queue(name="put-both"), QuickProducer.remote(), tmp_path / "put"
    process_id = ray.get(producer.process_id.remote())
    producer.put.remote(queue, str(path), 10_000_000)
    wait_until(lambda: put_so_far(path) > 5000, ENOUGH_S, "the producer is in the middle")
    count = kill_with_leader(cluster, queue, process_id, path)
    items = everything(queue)
    assert items in ([*range(count)], [*range(count + 1)])
    queue.shutdown()


def test_no_large_item_is_lost_or_doubled_with_the_producer_and_the_leader(cluster: Cluster, tmp_path: Path) -> None:
    queue, producer, path = Queue(name="put-large"), QuickProducer.remote(), tmp_path / "put"
    process_id = ray.get(producer.process_id.remote())
    producer.put.remote(queue, str(path), 10_000_000, 500_000)
    wait_until(lambda: put_so_far(path) > 200, ENOUGH_S, "the producer is in the middle")
    assert [journal.stat().st_size > LARGE_CAPACITY for journal in journals_of(cluster, "put-large")] == [True]
    kill_leader(cluster, "put-large")
    count = put_so_far(path)
    wait_until(lambda: put_so_far(path) > count + 200, ENOUGH_S, "the producer goes on")
    count = kill_with_leader(cluster, queue, process_id, path)
    items = everything(queue)
    assert [number for number, _ in items] in ([*range(count)], [*range(count + 1)])
    assert {data for _, data in items} == {bytes(500_000)}
    queue.shutdown()


def test_items_of_all_sizes_stay_in_order(cluster: Cluster) -> None:
    """The journal is not large enough for some of them at first, and for others never."""
    queue = Queue(name="put-sizes")
    sizes = [100, 100, 200_000, 50, 64_000, 70_000, 10] * 40 + [5_000_000, 300_000, 10] * 10
    for number, size in enumerate(sizes):
        queue.put((number, b"x" * size))
    queue.put_nowait_batch([(len(sizes) + number, b"y" * size) for number, size in enumerate(sizes[:50])])
    queue.flush()
    assert [number for number, _ in everything(queue)] == [*range(len(sizes) + 50)]
    queue.shutdown()


def test_a_put_after_shutdown_is_an_error_with_a_journal_too(cluster: Cluster) -> None:
    queue = Queue(name="put-gone")
    put_until_journal(queue)
    Queue(name="put-gone").shutdown()
    refusals: list[RaykaError] = []

    def is_refused() -> bool:
        try:
            queue.put(1)
        except RaykaError as error:
            refusals.append(error)
        return bool(refusals)

    wait_until(is_refused, ENOUGH_S, "this process has heard of the shutdown")
    assert refusals[0].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def put_until_journal(queue: Queue) -> None:
    def has_journal() -> bool:
        queue.put_nowait_batch(range(100))
        journals = queue._here.writer._journals
        return journals is not None and journals.journal is not None

    wait_until(has_journal, ENOUGH_S, "the queue has a journal")
