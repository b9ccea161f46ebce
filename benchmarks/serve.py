"""Ray Serve's asynchronous inference with rayka beside Celery on Redis: `python -m benchmarks.serve`.

The same deployment of three replicas with both adapters, in turns, on one Ray cluster. The handler answers how long ago
its task was enqueued, by the clock of the machine. "one" enqueues the next task when the result of the last one is
there; "many" enqueues all at once. Needs Ray Serve, Celery and a `redis-server`: `pip install 'celery[redis]'`, and
`apt-get install redis-server`, or its path with `--redis`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import rayka
from rayka.serve import RaykaAdapterConfig, RaykaTaskProcessorAdapter
from rayka.testing import free_port, wait_until

REPLICAS = 3
_PAUSE_S = 0.02
_WARM_UP = 30
_TIMEOUT_S = 120.0


class Tasks:
    """A deployment whose handler answers how many seconds ago its task was enqueued."""

    def __init__(self, name: str, processor: TaskProcessorConfig) -> None:
        @serve.deployment(num_replicas=REPLICAS, ray_actor_options={"num_cpus": 0})
        @task_consumer(task_processor_config=processor)
        class Handler:
            @task_handler(name="age")  # type: ignore[untyped-decorator]
            def age(self, enqueued: float) -> float:
                return time.time() - enqueued

        serve.run(Handler.bind(), name=name, route_prefix=None)
        self._adapter: Any = instantiate_adapter_from_config(processor)

    def enqueue(self) -> str:
        """A task; returns its id."""
        task = self._adapter.enqueue_task_sync("age", args=[time.time()])
        return str(task.id)

    def results(self, ids: Sequence[str]) -> list[float]:
        """What the handler answered, when all have ended."""
        found: dict[str, float] = {}

        def have_ended() -> bool:
            for each in ids:
                if each not in found:
                    status = self._adapter.get_task_status_sync(each)
                    if status.result is not None:
                        found[each] = float(status.result)
            return len(found) == len(ids)

        wait_until(have_ended, _TIMEOUT_S, "all tasks have ended")
        return [found[each] for each in ids]


def measure(name: str, processor: TaskProcessorConfig, one: int, many: int) -> None:
    """Print a line."""
    tasks = Tasks(name, processor)
    tasks.results([tasks.enqueue() for _ in range(_WARM_UP)])
    ages = []
    for _ in range(one):
        ages += tasks.results([tasks.enqueue()])
        time.sleep(_PAUSE_S)
    began = time.monotonic()
    ids = [tasks.enqueue() for _ in range(many)]
    enqueued_s = time.monotonic() - began
    late = tasks.results(ids)
    ended_s = time.monotonic() - began
    parts = statistics.quantiles(ages, n=100)
    print(
        f"{name}: one at a time started after p50 {parts[49] * 1e3:.1f} ms, p99 {parts[98] * 1e3:.1f} ms;"
        f" {many} at once: enqueued in {enqueued_s:.2f} s, ended after {ended_s:.2f} s, started after p50"
        f" {statistics.median(late) * 1e3:.1f} ms",
        flush=True,
    )
    serve.delete(name)


def main() -> None:
    """Print a line for each adapter and round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", type=int, default=200, help="tasks one at a time")
    parser.add_argument("--many", type=int, default=500, help="tasks at once")
    parser.add_argument("--redis", default="redis-server", help="the server's program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, rayka.start(str(Path(directory, "data")), "127.0.0.1:0"):
        port = free_port()
        command = [options.redis, "--port", str(port), "--dir", directory, "--appendonly", "yes", "--save", ""]
        redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            serve.start(proxy_location="Disabled")
            for number in range(options.rounds):
                queue_name, url = f"tasks-{number}", f"redis://127.0.0.1:{port}/{number}"
                ours = TaskProcessorConfig(
                    queue_name=queue_name, adapter=RaykaTaskProcessorAdapter, adapter_config=RaykaAdapterConfig()
                )
                celerys = TaskProcessorConfig(
                    queue_name=queue_name, adapter_config=CeleryAdapterConfig(broker_url=url, backend_url=url)
                )
                for name, processor in (("rayka", ours), ("celery", celerys)):
                    measure(f"{name}-{number}", processor, options.one, options.many)
            print(f"load {os.getloadavg()[0]:.1f}")
            serve.shutdown()
        finally:
            redis.terminate()
            redis.wait()


if __name__ == "__main__":
    main()
