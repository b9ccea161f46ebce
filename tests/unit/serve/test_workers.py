"""Tasks from enqueueing to their result, with the workers of one or of two replicas."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rayka.actors.share.waiters import GroupPartition
from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from rayka.queue import Queue
from rayka.queue.items import dumps
from rayka.queue.waiting_reader import LeasedItem
from rayka.serve.results import Results
from rayka.serve.task import FailedTask, Status, Task, delivery_limit
from rayka.serve.worker import Workers
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.local_queues import local_queues

ENOUGH_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The broker of the module."""
    with local_queues(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


class Tasks:
    """A queue of tasks with its results, and workers for it."""

    def __init__(self, cluster: Cluster, name: str, max_retries: int = 0) -> None:
        self._cluster = cluster
        self._max_retries = max_retries
        self.name = name
        self.queue = self._queue()
        self.results = Results(cluster, name, 3600)
        self.failed, self.unprocessable = Queue(name=f"{name}-failed"), Queue(name=f"{name}-unprocessable")
        self._workers: list[Workers] = []

    def _queue(self) -> Queue:
        attempts = delivery_limit(self._max_retries)
        return Queue(name=self.name, lease="task_done", max_attempts=attempts, prefetch=1)

    def enqueue(
        self, task_id: str, name: str, *args: Any, arguments: bytes | None = None, has_own_id: bool = False
    ) -> None:
        data = dumps((args, {})) if arguments is None else arguments
        self.queue.put(tuple(Task(task_id, name, data, time.time(), has_own_id)))

    def await_idle(self) -> None:
        """Return when a worker waits at the leader."""
        waiters = self._cluster._connection.broker.share_leaders.partitions._waiters
        key = GroupPartition(self.name, TopicPartition(self.name, 0))
        wait_until(lambda: self.queue.lag() == 0 and waiters.has_waiters(key), ENOUGH_S, "a worker waits")

    def start(self, threads: int = 2, **handlers: Callable[..., Any]) -> Workers:
        """The workers of one more replica."""
        results = Results(self._cluster, self.name, 3600)
        workers = Workers(
            self._queue(),
            results,
            handlers,
            self._max_retries,
            failed=self.failed,
            unprocessable=self.unprocessable,
        )
        self._workers.append(workers)
        workers.start(threads)
        return workers

    def ended(self, *task_ids: str) -> list[tuple[Status, Any]]:
        """The outcomes, once all are there."""
        wait_until(lambda: all(self.results.status(one).is_final for one in task_ids), ENOUGH_S, "the tasks end")
        return [tuple(self.results.read(one)) for one in task_ids]  # type: ignore[misc]

    def stop(self) -> None:
        for workers in self._workers:
            assert workers.stop(ENOUGH_S)


@pytest.fixture
def tasks(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Tasks]:
    tasks = Tasks(cluster, request.node.originalname[:80], getattr(request, "param", 0))
    yield tasks
    tasks.stop()


def test_tasks_run_on_all_replicas_and_each_result_is_found_by_its_id(tasks: Tasks) -> None:
    ids = [f"task-{number}" for number in range(40)]
    seen: list[int] = []

    def square(number: int) -> int:
        seen.append(number)
        return number**2

    async def cube(number: int) -> int:
        await asyncio.sleep(0)
        seen.append(number)
        return number**3

    for number, task_id in enumerate(ids):
        tasks.enqueue(task_id, "cube" if number % 2 else "square", number)
    assert tasks.results.status(ids[0]) is Status.PENDING
    for _ in range(2):
        tasks.start(square=square, cube=cube)
    expected = [(Status.SUCCESS, number ** (3 if number % 2 else 2)) for number in range(40)]
    assert tasks.ended(*ids) == expected
    assert sorted(seen) == [*range(40)]
    wait_until(lambda: tasks.queue.lag() == 0, ENOUGH_S, "nothing is left to do")


@pytest.mark.parametrize("tasks", [1], indirect=True)
def test_a_task_that_raises_is_tried_again_and_then_fails_with_its_traceback(tasks: Tasks) -> None:
    attempts: list[float] = []

    def explode(what: str) -> None:
        attempts.append(time.monotonic())
        raise ValueError(f"{what} exploded")

    def recover() -> str:
        if len(recovered) == 0:
            recovered.append(1)
            raise ConnectionError("not yet")
        return "recovered"

    recovered: list[int] = []
    tasks.enqueue("bad", "explode", "it")
    tasks.enqueue("good", "recover")
    workers = tasks.start(explode=explode, recover=recover)
    (status, error), good = tasks.ended("bad", "good")
    assert (status, repr(error)) == (Status.FAILURE, "ValueError('it exploded')")
    assert good == (Status.SUCCESS, "recovered")
    assert len(attempts) == 2
    assert attempts[1] - attempts[0] >= 1
    assert workers.counts[Status.RETRY] == 2
    failed = FailedTask(*tasks.failed.get(timeout=ENOUGH_S))
    assert (failed.task_id, failed.name, failed.args) == ("bad", "explode", ("it",))
    assert 'raise ValueError(f"{what} exploded")' in failed.traceback


def test_tasks_that_no_worker_can_process_go_to_their_own_queue(tasks: Tasks) -> None:
    tasks.enqueue("unknown", "nobody knows")
    tasks.enqueue("damaged", "echo", arguments=b"not a pickle")
    tasks.start(echo=lambda value: value)
    assert [status for status, _ in tasks.ended("unknown", "damaged")] == [Status.FAILURE] * 2
    refused = {FailedTask(*tasks.unprocessable.get(timeout=ENOUGH_S)).task_id for _ in range(2)}
    assert refused == {"unknown", "damaged"}
    assert tasks.failed.empty()


def test_a_cancelled_task_is_not_run_and_one_that_has_ended_keeps_its_result(tasks: Tasks) -> None:
    ran: list[str] = []
    tasks.enqueue("cancelled", "note", "cancelled")
    tasks.results.cancel("cancelled")
    tasks.enqueue("kept", "note", "kept")
    tasks.start(note=ran.append)
    assert [status for status, _ in tasks.ended("kept", "cancelled")] == [Status.SUCCESS, Status.REVOKED]
    wait_until(lambda: tasks.queue.lag() == 0, ENOUGH_S, "the cancelled task is gone too")
    tasks.results.cancel("kept")
    assert tasks.results.status("kept") is Status.SUCCESS
    assert ran == ["kept"]


def test_a_task_that_was_delivered_again_after_it_ended_is_not_run_again(tasks: Tasks) -> None:
    ran: list[int] = []
    tasks.results.write("twice", Status.SUCCESS, "first")
    tasks.enqueue("twice", "note", 1)
    tasks.start(note=ran.append)
    wait_until(lambda: tasks.queue.lag() == 0, ENOUGH_S, "the task is done with")
    assert not ran
    assert tasks.ended("twice") == [(Status.SUCCESS, "first")]


def test_a_task_with_the_id_of_an_ended_one_is_not_run(tasks: Tasks) -> None:
    ran: list[int] = []
    tasks.start(1, note=ran.append)
    tasks.enqueue("twice", "note", 1)
    assert [status for status, _ in tasks.ended("twice")] == [Status.SUCCESS]
    tasks.await_idle()
    tasks.enqueue("twice", "note", 2)
    wait_until(lambda: tasks.queue.lag() == 0, ENOUGH_S, "the task is done with")
    assert ran == [1]


def test_a_new_task_runs_without_reading_the_results(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.start(1, double=lambda number: 2 * number)
    tasks.await_idle()
    with monkeypatch.context() as patch:
        patch.setattr(Results, "status", lambda *_: pytest.fail("the results are looked at"))
        tasks.enqueue("new", "double", 4, has_own_id=True)
        wait_until(lambda: tasks.queue.lag() == 0, ENOUGH_S, "the task is done with")
    assert tasks.ended("new") == [(Status.SUCCESS, 8)]


@pytest.mark.parametrize("tasks", [0, 1], indirect=True)
def test_a_failure_does_not_replace_the_result_of_another_worker(tasks: Tasks) -> None:
    """As when the leader of the queue dies: the next one delivers the task again, which is still running here."""

    def fail() -> None:
        tasks.results.write("task", Status.SUCCESS, "of the other")
        raise ConnectionError

    workers = tasks.start(1, fail=fail)
    tasks.await_idle()
    tasks.enqueue("task", "fail", has_own_id=True)
    wait_until(lambda: sum(workers.counts.values()) == 1, ENOUGH_S, "it has failed here")
    assert tasks.results.read("task") == (Status.SUCCESS, "of the other")


def test_the_first_result_of_a_task_stays_and_expired_ones_are_forgotten(cluster: Cluster, tasks: Tasks) -> None:
    tasks.results.write("one", Status.RETRY, ValueError("once"))
    tasks.results.write("one", Status.SUCCESS, 1)
    tasks.results.write("one", Status.FAILURE, "late")
    tasks.results.write("two", Status.SUCCESS, 2)
    assert tasks.results.read("one") == (Status.SUCCESS, 1)
    cluster.admin().delete_records({(tasks.results.topic, 0): 2})
    tasks.results.cancel("three")
    assert tasks.results.read("one") == (Status.PENDING, None)
    assert tasks.results.read("two") == (Status.SUCCESS, 2)
    assert tasks.results.read("three") == (Status.REVOKED, None)


def test_results_in_a_topic_that_was_created_again_are_found_behind_what_was_read_of_the_old_one(
    cluster: Cluster, tasks: Tasks
) -> None:
    for number in range(3):
        tasks.results.write(f"old-{number}", Status.SUCCESS, number)
    assert tasks.results.read("old-2") == (Status.SUCCESS, 2)
    cluster.admin().delete_topic(tasks.results.topic)
    others = Results(cluster, tasks.name, 3600)
    for number in range(4):
        others.write(f"new-{number}", Status.SUCCESS, number)
    assert [tasks.results.read(f"new-{number}") for number in range(4)] == [(Status.SUCCESS, n) for n in range(4)]
    assert tasks.results.status("old-2") is Status.PENDING
    others.close()


def test_a_task_whose_workers_all_died_fails_and_says_so(tasks: Tasks) -> None:
    tasks.enqueue("poison", "die")
    dying = tasks._queue()
    assert pickle.loads(dying.lease(timeout=ENOUGH_S).value)[0] == "poison"
    dying.task_failed()  # as an expired lease, it counts as a delivery
    tasks.start(die=lambda: pytest.fail("it is run again"))
    ((status, error),) = tasks.ended("poison")
    assert (status, type(error).__name__) == (Status.FAILURE, "WorkersDied")
    assert FailedTask(*tasks.failed.get(timeout=ENOUGH_S)).task_id == "poison"


def test_a_task_that_can_t_be_put_into_the_failed_queue_ends_with_its_last_delivery(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.serve.worker.retry_delay_s", lambda count: 0)
    monkeypatch.setattr("rayka.serve.worker._PAUSE_S", 0.0)
    monkeypatch.setattr("rayka.queue.topic._IMAGE_LAG_S", 0.0)
    tasks.failed.shutdown()
    write, refusals = Results.write, iter([RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)])

    def refuse_once(self: Results, *result: Any, is_only: bool) -> None:
        for error in refusals:
            raise error
        write(self, *result, is_only=is_only)

    monkeypatch.setattr(Results, "write", refuse_once)
    tasks.enqueue("lost", "fail")
    tasks.start(fail=lambda: 1 / 0)
    ((status, error),) = tasks.ended("lost")
    assert status is Status.FAILURE
    assert "was shut down" in str(error)


def test_a_worker_goes_on_after_any_error_while_it_waits_for_a_task(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.serve.worker._PAUSE_S", 0.0)
    wait, errors = Queue.wait, iter([OSError("the log's file is gone")])

    def fail_once(self: Queue, *arguments: Any) -> LeasedItem | None:
        for error in errors:
            raise error
        return wait(self, *arguments)

    monkeypatch.setattr(Queue, "wait", fail_once)
    tasks.enqueue("task", "double", 4)
    workers = tasks.start(1, double=lambda number: 2 * number)
    wait_until(lambda: next(errors, None) is None, ENOUGH_S, "it fails")
    assert tasks.ended("task") == [(Status.SUCCESS, 8)]
    assert workers.is_alive


def test_a_result_that_can_t_be_pickled_is_stored_as_text(tasks: Tasks) -> None:
    tasks.enqueue("lock", "make")
    tasks.start(make=threading.Lock)
    ((status, result),) = tasks.ended("lock")
    assert status is Status.SUCCESS
    assert "lock" in result


def test_a_result_of_many_megabytes_is_stored_and_one_that_is_too_large_fails_at_once(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.settings.MAX_ITEM_BYTES", 4 << 20)
    sizes: list[int] = []

    def make(size: int) -> bytes:
        sizes.append(size)
        return bytes(size)

    tasks.enqueue("large", "make", 3 << 20)
    tasks.enqueue("too large", "make", 5 << 20)
    tasks.start(make=make)
    (large, length), (status, error) = [
        (status, len(result) if isinstance(result, bytes) else result)
        for status, result in tasks.ended("large", "too large")
    ]
    assert (large, length) == (Status.SUCCESS, 3 << 20)
    assert status is Status.FAILURE
    assert "too large" in str(error)
    assert sorted(sizes) == [3 << 20, 5 << 20]


def test_a_task_that_fails_with_megabytes_of_text_keeps_its_own_error(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.serve.worker.retry_delay_s", lambda count: 0)
    monkeypatch.setattr("rayka.queue.settings.MAX_ITEM_BYTES", 4 << 20)

    def explode() -> None:
        raise ValueError("too much: " + (3 << 20) * "x")

    tasks.enqueue("bad", "explode")
    tasks.start(explode=explode)
    ((status, error),) = tasks.ended("bad")
    assert (status, type(error)) == (Status.FAILURE, ValueError)
    failed = FailedTask(*tasks.failed.get(timeout=ENOUGH_S))
    assert failed.error.startswith("ValueError('too much: ")
    assert "raise ValueError" in failed.traceback


class NeedsTwo(Exception):
    """Can be pickled, and not unpickled, as many exceptions of libraries."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def test_an_exception_that_can_t_be_unpickled_is_stored_as_text(tasks: Tasks) -> None:
    def explode() -> None:
        raise NeedsTwo("this", "that")

    tasks.enqueue("bad", "explode")
    tasks.start(explode=explode)
    ((status, error),) = tasks.ended("bad")
    assert status is Status.FAILURE
    assert "this and that" in str(error)


def test_a_handler_that_exits_or_is_cancelled_fails_and_its_worker_goes_on(tasks: Tasks) -> None:
    def leave() -> None:
        raise SystemExit(1)

    async def cancel() -> None:
        raise asyncio.CancelledError

    tasks.enqueue("exits", "leave")
    tasks.enqueue("cancelled", "cancel")
    workers = tasks.start(1, leave=leave, cancel=cancel)
    assert [status for status, _ in tasks.ended("exits", "cancelled")] == [Status.FAILURE] * 2
    assert workers.is_alive
