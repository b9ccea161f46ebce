"""`rayka.Queue` among Ray's tasks and actors, some of which are killed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import ray

import rayka
from rayka.client.cluster import Cluster
from rayka.queue import Empty, Queue
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
    broker = cluster._connection.broker
    actor = broker.image.topics["leaders"].partitions[0].leader_actor
    assert actor is not None
    start = broker.image.actors[actor].epoch
    ray.kill(ray.get_actor(actor, namespace="rayka"), no_restart=False)
    wait_until(lambda: broker.image.actors[actor].epoch > start, ENOUGH_S, "the leader is another process")
    queue.put(50)
    while len(set(taken)) < 51:
        taken.append(queue.get(timeout=ENOUGH_S))
    assert set(taken) == {*range(51)}
    assert len(taken) <= 52, "at most the item that was leased comes again"
    queue.shutdown()
