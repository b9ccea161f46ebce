"""An autoscaling policy for task consumers: it scales replicas with the lag of the queue's share group."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from typing import Any

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.errors import RaykaError
from rayka.queue import Queue
from rayka.serve.task import desired_replicas

logger = logging.getLogger(__name__)


class QueueAutoscalingPolicy:
    """Replaces Ray Serve's `AsyncInferenceAutoscalingPolicy`.

    Waiting tasks, running tasks and requests to the replicas all count. A thread asks for the lag every
    `poll_interval_s` seconds; the last answer counts until the next one.
    """

    def __init__(self, queue_name: str, namespace: str = DEFAULT_NAMESPACE, poll_interval_s: float = 1.0) -> None:
        self._queue_name = queue_name
        self._namespace = namespace
        self._poll_interval_s = poll_interval_s
        self._queue: Queue | None = None
        self._lag = 0
        self._asked_s = 0.0
        self._answer: concurrent.futures.Future[int] | None = None
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="rayka-queue-lag")

    def __call__(self, ctx: Any) -> tuple[int | float, dict[str, Any]]:
        """Takes Serve's context. Returns the number of replicas, and the lag."""
        self._poll()
        workload = ctx.total_num_requests + self._lag
        target = ctx.config.get_target_ongoing_requests()
        return desired_replicas(workload, ctx.current_num_replicas, target), {"queue_length": self._lag}

    def _poll(self) -> None:
        if self._answer is not None and self._answer.done():
            try:
                self._lag = self._answer.result()
            except Exception as error:
                logger.warning("the lag of the queue %s is not known: %r", self._queue_name, error)
            self._answer = None
        if self._answer is None and time.monotonic() - self._asked_s >= self._poll_interval_s:
            self._asked_s = time.monotonic()
            self._answer = self._executor.submit(self._ask)

    def _ask(self) -> int:
        if self._queue is None:
            self._queue = Queue.find(self._queue_name, self._namespace)
        try:
            return self._queue.lag() if self._queue is not None else 0
        except RaykaError:
            self._queue = None  # It may have been deleted, and created again.
            raise
