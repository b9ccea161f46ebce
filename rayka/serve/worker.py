"""The workers of one replica: threads that get tasks from the queue and run their handlers.

Invariant: a task is acknowledged only when its outcome is in the log. So a task whose worker dies is run again by
another one, unless its outcome is there already.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.queue import Queue
from rayka.queue.items import loads
from rayka.serve.results import TEXT_LENGTH, Results
from rayka.serve.task import FailedTask, Status, Task, Verdict, delivery_limit, retry_delay_s, verdict

logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.5
"""How long a worker waits for a task before it looks whether it has to stop."""
_PAUSE_S: Final = 0.5
"""How long a worker pauses after an error of the broker, so that it does not fill the log with them."""

Handler = Callable[..., Any]


class WorkersDied(RuntimeError):
    """Each worker that had the task died, or could not store its outcome."""


class Delivery(NamedTuple):
    """A task in its `delivery_count`th delivery.

    `is_first`: nobody can have run or cancelled it before. It is leased at least until the time `until_s` of
    `time.monotonic()`.
    """

    task: Task
    delivery_count: int
    is_first: bool
    until_s: float


class Workers:
    """Threads that run tasks until `stop`. `failed` and `unprocessable` are the queues for tasks that end badly."""

    def __init__(
        self,
        queue: Queue,
        results: Results,
        handlers: Mapping[str, Handler],
        max_retries: int,
        *,
        failed: Queue | None,
        unprocessable: Queue | None,
    ) -> None:
        self._queue = queue
        self._results = results
        self._handlers = handlers
        self._max_retries = max_retries
        self._failed = failed
        self._unprocessable = unprocessable
        self._is_stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._counting = threading.Lock()
        self.counts = dict.fromkeys(Status, 0)
        self.running = 0

    @property
    def is_alive(self) -> bool:
        """Whether all threads run."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def start(self, count: int) -> None:
        """Run `count` tasks at a time."""
        self._threads = [threading.Thread(target=self._run, name=f"rayka-task-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Begin no more tasks; return whether those in progress ended in time. Those that did not are run again."""
        self._is_stopping.set()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            while not self._is_stopping.is_set():
                self._run_next(loop)
        finally:
            loop.close()

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a task, and process it."""
        try:
            leased = self._queue.wait(_WAIT_S, self._is_stopping)
        except Exception:  # any: a worker whose thread has ended is not replaced
            logger.exception("cannot get a task from the queue %s", self._queue.name)
            self._is_stopping.wait(_PAUSE_S)
            return
        if leased is None:
            return
        count = leased.item.delivery_count
        try:
            task = Task(*loads(leased.item.value))
        except Exception:
            logger.exception("an item of the queue %s is not a task", self._queue.name)
            self._queue.task_failed(delay_s=retry_delay_s(count))
            return
        delivery = Delivery(task, count, leased.is_new and task.has_own_id, leased.until_s)
        try:
            self._process(delivery, loop)
        except Exception as error:
            logger.exception("task %s of the queue %s could not be processed", task.task_id, self._queue.name)
            self._give_back(delivery, error)

    def _give_back(self, delivery: Delivery, error: Exception) -> None:
        """Have the task delivered again. After its last delivery it has failed instead.

        The program that waits for the outcome must learn that, so the task is kept until the failure is stored.
        """
        if delivery.delivery_count < delivery_limit(self._max_retries):
            self._queue.task_failed(delay_s=retry_delay_s(delivery.delivery_count))
            return
        while not self._is_stopping.is_set():
            try:
                self._end(delivery, Status.FAILURE, error)
                return
            except RaykaError:
                logger.exception("cannot store the failure of task %s", delivery.task.task_id)
                self._is_stopping.wait(_PAUSE_S)

    def _process(self, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> None:
        task = delivery.task
        status = Status.PENDING if delivery.is_first else self._results.status(task.task_id)
        match verdict(status, delivery.delivery_count, self._max_retries, has_handler=task.name in self._handlers):
            case Verdict.DROP:
                self._queue.task_done()
            case Verdict.REFUSE:
                self._refuse(delivery, KeyError(f"No handler is registered for the task {task.name!r}"))
            case Verdict.GIVE_UP:
                earlier = delivery.delivery_count - 1
                reason = f"the task {task.task_id} was delivered {earlier} times, and no worker ended it"
                self._fail(delivery, WorkersDied(reason), ((), {}))
            case Verdict.RUN:
                self._try(delivery, loop)

    def _try(self, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> None:
        try:
            args, kwargs = pickle.loads(delivery.task.arguments)
        except Exception as error:
            self._refuse(delivery, error)
            return
        with self._counting:
            self.running += 1
        try:
            result = self._handlers[delivery.task.name](*args, **kwargs)
            if inspect.isawaitable(result):
                result = loop.run_until_complete(_awaited(result))
        except BaseException as error:  # SystemExit and CancelledError too, which would end the thread
            self._raised(delivery, error, (args, kwargs))
        else:
            self._succeeded(delivery, result, (args, kwargs))
        finally:
            with self._counting:
                self.running -= 1

    def _succeeded(self, delivery: Delivery, result: Any, arguments: Any) -> None:
        try:
            self._end(delivery, Status.SUCCESS, result)
        except RaykaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            self._fail(delivery, error, arguments)

    def _raised(self, delivery: Delivery, error: BaseException, arguments: Any) -> None:
        if delivery.delivery_count > self._max_retries:
            self._fail(delivery, error, arguments)
            return
        self._write(delivery, Status.RETRY, error)
        self._queue.task_failed(delay_s=retry_delay_s(delivery.delivery_count))

    def _fail(self, delivery: Delivery, error: BaseException, arguments: Any) -> None:
        logger.error("task %s (%s) failed: %r", delivery.task.task_id, delivery.task.name, error)
        self._put_failed(self._failed, delivery.task, error, arguments)
        self._end(delivery, Status.FAILURE, error)

    def _refuse(self, delivery: Delivery, error: BaseException) -> None:
        logger.error("task %s (%s) can't be processed: %r", delivery.task.task_id, delivery.task.name, error)
        self._put_failed(self._unprocessable, delivery.task, error, ((), {}))
        self._end(delivery, Status.FAILURE, error)

    def _put_failed(self, queue: Queue | None, task: Task, error: BaseException, arguments: Any) -> None:
        if queue is not None:
            text = "".join(line[:TEXT_LENGTH] for line in traceback.format_exception(error))
            queue.put(tuple(FailedTask(task.task_id, task.name, repr(error)[:TEXT_LENGTH], text, *arguments)))

    def _end(self, delivery: Delivery, status: Status, result: Any) -> None:
        self._write(delivery, status, result)
        self._queue.task_done()

    def _write(self, delivery: Delivery, status: Status, result: Any) -> None:
        # If the queue's leader has died, the task may have ended elsewhere: a failure must not replace that result.
        is_only = status is Status.SUCCESS and delivery.is_first and time.monotonic() < delivery.until_s
        self._results.write(delivery.task.task_id, status, result, is_only=is_only)
        with self._counting:
            self.counts[status] += 1


async def _awaited(result: Any) -> Any:
    return await result
