"""The workers of one replica: threads that get tasks from the queue and run their handlers.

The result is in the log before the task is done with, so a task whose worker dies is run again by another one, and one
whose result is there is not.
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
from rayka.serve.task import FailedTask, Status, Task, Verdict, delivery_limit, retry_delay_ms, verdict

logger = logging.getLogger(__name__)

_LOOK_UP_S: Final = 0.5
_PAUSE_S: Final = 0.5

Handler = Callable[..., Any]


class WorkersDied(RuntimeError):
    """Each worker that had the task died, or could not say how it ended."""


class Delivery(NamedTuple):
    """A task that was delivered for the `number`th time.

    `is_first`: nobody can have run or cancelled it before. It is leased at least until the time `until_s` of
    `time.monotonic()`.
    """

    task: Task
    number: int
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
        """Run so many tasks at a time."""
        self._threads = [threading.Thread(target=self._run, name=f"task-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Begin no more tasks; returns whether those under way have ended in time. The others are run again."""
        self._is_stopping.set()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            while not self._is_stopping.is_set():
                self._take(loop)
        finally:
            loop.close()

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        """One task, if there is one."""
        try:
            leased = self._queue.wait(_LOOK_UP_S, self._is_stopping)
        except Exception:  # whatever it is, a thread that ends takes no task ever again
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
            self._queue.task_failed(retry_delay_ms(count))
            return
        delivery = Delivery(task, count, leased.is_new and task.has_own_id, leased.until_s)
        try:
            self._process(delivery, loop)
        except Exception as error:
            logger.exception("task %s of the queue %s could not be processed", task.task_id, self._queue.name)
            self._give_back(delivery, error)

    def _give_back(self, delivery: Delivery, error: Exception) -> None:
        """Have the task delivered again, for which this was nothing; but after the last delivery it has failed.

        The program that waits for it must learn that, so the task is kept until the result can be written.
        """
        if delivery.number < delivery_limit(self._max_retries):
            self._queue.task_failed(retry_delay_ms(delivery.number))
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
        match verdict(status, delivery.number, self._max_retries, has_handler=task.name in self._handlers):
            case Verdict.DROP:
                self._queue.task_done()
            case Verdict.REFUSE:
                self._refuse(delivery, KeyError(f"No handler is registered for the task {task.name!r}"))
            case Verdict.GIVE_UP:
                deliveries = (
                    f"the task {task.task_id} was delivered {delivery.number - 1} times, and no worker ended it"
                )
                self._fail(delivery, WorkersDied(deliveries), ((), {}))
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
        if delivery.number > self._max_retries:
            self._fail(delivery, error, arguments)
            return
        self._write(delivery, Status.RETRY, error)
        self._queue.task_failed(retry_delay_ms(delivery.number))

    def _fail(self, delivery: Delivery, error: BaseException, arguments: Any) -> None:
        logger.error("task %s (%s) failed: %r", delivery.task.task_id, delivery.task.name, error)
        self._put(self._failed, delivery.task, error, arguments)
        self._end(delivery, Status.FAILURE, error)

    def _refuse(self, delivery: Delivery, error: BaseException) -> None:
        logger.error("task %s (%s) can't be processed: %r", delivery.task.task_id, delivery.task.name, error)
        self._put(self._unprocessable, delivery.task, error, ((), {}))
        self._end(delivery, Status.FAILURE, error)

    def _put(self, queue: Queue | None, task: Task, error: BaseException, arguments: Any) -> None:
        if queue is not None:
            text = "".join(line[:TEXT_LENGTH] for line in traceback.format_exception(error))
            queue.put(tuple(FailedTask(task.task_id, task.name, repr(error)[:TEXT_LENGTH], text, *arguments)))

    def _end(self, delivery: Delivery, status: Status, result: Any) -> None:
        self._write(delivery, status, result)
        self._queue.task_done()

    def _write(self, delivery: Delivery, status: Status, result: Any) -> None:
        # If the queue's leader has died, the task may have ended elsewhere: no failure may take the place of a result.
        is_only = status is Status.SUCCESS and delivery.is_first and time.monotonic() < delivery.until_s
        self._results.write(delivery.task.task_id, status, result, is_only=is_only)
        with self._counting:
            self.counts[status] += 1


async def _awaited(result: Any) -> Any:
    return await result
