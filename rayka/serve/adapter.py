"""The task processor of Ray Serve's asynchronous inference, on rayka."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, Field
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.joined import RayCluster
from rayka.queue import Queue
from rayka.queue.items import dumps
from rayka.serve.results import Results
from rayka.serve.task import Status, Task, delivery_limit, retries_of
from rayka.serve.worker import Handler, Workers

logger = logging.getLogger(__name__)


class RaykaAdapterConfig(BaseModel):
    """The settings of `RaykaTaskProcessorAdapter`, all of which have defaults."""

    namespace: str = Field(default=DEFAULT_NAMESPACE, description="Ray's namespace in which the broker runs.")
    partitions: int = Field(default=1, ge=1, description="Partitions of the queue's topic, when it is created.")
    lease_s: int = Field(
        default=30, ge=15, le=60, description="After how many seconds the tasks of a replica that died are run again."
    )
    result_expires_s: int = Field(default=86_400, ge=1, description="After how many seconds results are deleted.")


class RaykaTaskProcessorAdapter(TaskProcessorAdapter):
    """Keeps tasks in a topic with the queue's name, read by a share group, and results in the topic `QUEUE.results`.

    A task is leased to the replica that runs it, and runs again if the replica dies. A handler that raises an error is
    retried `max_retries` times, after 1, 2, 4 ... seconds. The configuration names two more queues: one for tasks that
    fail permanently, and one for tasks that no handler takes or whose arguments can't be unpickled.
    `rayka.Queue(name=...)` gets these tasks as `FailedTask`s. Calls and handlers can be synchronous or asynchronous.
    Raises TypeError and ValueError for an invalid configuration.
    """

    def __init__(self, config: TaskProcessorConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._config = config
        self._settings = _settings(config.adapter_config)
        self._max_retries = retries_of(config.max_retries)
        self._handlers: dict[str, Handler] = {}
        self._workers: Workers | None = None
        self._consumed: Queue | None = None
        self._concurrency = 1

    def initialize(self, consumer_concurrency: int = 1) -> None:
        """Open the queue and the topic of the results. Serve calls this in an event loop, where nothing may block."""
        self._concurrency = consumer_concurrency
        with ThreadPoolExecutor(1, "rayka-open") as thread:
            thread.submit(self._open).result()

    def _open(self) -> None:
        self._queue = self._queue_of(self._config.queue_name)
        cluster = RayCluster.here(self._settings.namespace).join()
        self._results = Results(cluster, self._config.queue_name, self._settings.result_expires_s)

    def _queue_of(self, name: str) -> Queue:
        return Queue(
            name=name,
            lease="task_done",
            lease_s=self._settings.lease_s,
            max_attempts=delivery_limit(self._max_retries),
            prefetch=1,
            partitions=self._settings.partitions,
            namespace=self._settings.namespace,
        )

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Run tasks of this name, by default the function's, with `func`."""
        self._handlers[name or func.__name__] = func

    def start_consumer(self, **kwargs: Any) -> None:
        """Start running tasks, as many at a time as the deployment's `max_ongoing_requests`."""
        if self._workers is not None and self._workers.is_alive:
            logger.info("the workers of the queue %s are already running", self._config.queue_name)
            return
        failed, unprocessable = self._config.failed_task_queue_name, self._config.unprocessable_task_queue_name
        self._consumed = self._queue_of(self._config.queue_name)
        self._workers = Workers(
            self._consumed,
            self._results,
            self._handlers,
            self._max_retries,
            failed=self._queue_of(failed) if failed else None,
            unprocessable=self._queue_of(unprocessable) if unprocessable else None,
        )
        self._workers.start(self._concurrency)

    def stop_consumer(self, timeout: float = 10.0) -> None:
        """Start no more tasks, and wait for those in progress. Tasks that do not end in time run again."""
        workers, self._workers = self._workers, None
        if workers is None or self._consumed is None:
            return
        if not workers.stop(timeout):
            logger.warning("tasks of the queue %s did not end within %s s", self._config.queue_name, timeout)
        self._consumed.close()

    def enqueue_task_sync(
        self, task_name: str, args: Any | None = None, kwargs: Any | None = None, **options: Any
    ) -> TaskResult:
        """Put a task into the queue; return when it is in the log. The option `task_id` gives its id."""
        task = _task(task_name, args, kwargs, options)
        self._queue.put(tuple(task))
        return _pending(task)

    async def enqueue_task_async(
        self, task_name: str, args: Any | None = None, kwargs: Any | None = None, **options: Any
    ) -> TaskResult:
        """As `enqueue_task_sync`."""
        task = _task(task_name, args, kwargs, options)
        await self._queue.put_async(tuple(task))
        return _pending(task)

    def get_task_status_sync(self, task_id: str) -> TaskResult:
        """The current status, and the handler's return value or error. An unknown task is PENDING."""
        outcome = self._results.read(task_id)
        return TaskResult(id=task_id, status=outcome.status, result=outcome.result)

    async def get_task_status_async(self, task_id: str) -> TaskResult:
        """As `get_task_status_sync`."""
        return await asyncio.to_thread(self.get_task_status_sync, task_id)

    def cancel_task_sync(self, task_id: str) -> None:
        """Cancel a task that no worker has started. A running task continues."""
        self._results.cancel(task_id)

    async def cancel_task_async(self, task_id: str) -> None:
        """As `cancel_task_sync`."""
        await asyncio.to_thread(self.cancel_task_sync, task_id)

    def get_metrics_sync(self) -> dict[str, Any]:
        """`queue_length` counts waiting tasks, `running` those of this replica; the statuses count tasks that ended."""
        workers = self._workers
        ended = {} if workers is None else {str(status): count for status, count in workers.counts.items() if count}
        return {
            "queue_name": self._config.queue_name,
            "queue_length": self._queue.qsize(),
            "running": 0 if workers is None else workers.running,
            "ended": ended,
        }

    async def get_metrics_async(self) -> dict[str, Any]:
        """As `get_metrics_sync`."""
        return await asyncio.to_thread(self.get_metrics_sync)

    def health_check_sync(self) -> list[dict[str, Any]]:
        """One entry: whether the workers run. Raises RaykaError if the queue does not answer."""
        self._queue.qsize()
        is_alive = self._workers is None or self._workers.is_alive
        return [{self._config.queue_name: {"ok": "pong"} if is_alive else {"error": "a worker has ended"}}]

    async def health_check_async(self) -> list[dict[str, Any]]:
        """As `health_check_sync`."""
        return await asyncio.to_thread(self.health_check_sync)


def _settings(given: Any) -> RaykaAdapterConfig:
    if isinstance(given, RaykaAdapterConfig):
        return given
    if isinstance(given, CeleryAdapterConfig):
        logger.warning("The CeleryAdapterConfig is not used: tasks and results are in topics of rayka")
        return RaykaAdapterConfig()
    if given is None or isinstance(given, dict):
        return RaykaAdapterConfig(**(given or {}))
    raise TypeError(f"adapter_config must be a RaykaAdapterConfig or a dict, not {type(given).__name__}")


def _task(name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Task:
    given_id = options.pop("task_id", None)
    if options:
        raise TypeError(f"Unknown options: {', '.join(sorted(options))}; the only option is task_id")
    arguments = dumps((tuple(args or ()), dict(kwargs or {})))
    return Task(str(given_id or uuid.uuid4()), name, arguments, time.time(), has_own_id=not given_id)


def _pending(task: Task) -> TaskResult:
    return TaskResult(id=task.task_id, status=Status.PENDING, created_at=task.created_s, result=None)
