"""Ray Serve's asynchronous inference over rayka, while replicas and partition leaders die."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import rayka
from rayka.client.cluster import Cluster
from rayka.serve import QueueAutoscalingPolicy, RaykaAdapterConfig, RaykaTaskProcessorAdapter
from rayka.serve.task import FailedTask
from rayka.testing import wait_until
from tests.support.embedded import embedded
from tests.support.scale import rounds

ENOUGH_S = 240.0
TASKS = rounds(100, 1000)
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(900)  # Replicas start slowly on a busy machine.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Ray with Serve, and a broker."""
    with embedded(tmp_path_factory.mktemp("data"), cpus=8) as cluster:
        serve.start(proxy_location="Disabled")
        yield cluster
        serve.shutdown()


def config(queue_name: str, **settings: Any) -> TaskProcessorConfig:
    settings = {"max_retries": 0, "failed_task_queue_name": f"{queue_name}-failed", **settings}
    return TaskProcessorConfig(
        queue_name=queue_name,
        adapter=RaykaTaskProcessorAdapter,
        adapter_config=RaykaAdapterConfig(lease_s=15),
        **settings,
    )


def test_each_task_ends_once_though_a_replica_and_a_leader_die(cluster: Cluster) -> None:
    processor = config("jobs")

    @serve.deployment(num_replicas=3, max_ongoing_requests=2, ray_actor_options={"num_cpus": 0})
    @task_consumer(task_processor_config=processor)
    class Jobs:
        @task_handler(name="square")
        def square(self, number: int) -> tuple[int, float]:
            started = time.time()
            time.sleep(0.01)
            if number % 10 == 3:
                raise ValueError(f"{number} is unlucky")
            return number**2, started

        @task_handler
        async def pid(self) -> int:
            return os.getpid()

    serve.run(Jobs.bind(), name="jobs", route_prefix=None)
    adapter = instantiate_adapter_from_config(processor)
    tasks = [adapter.enqueue_task_sync("square", args=[number]) for number in range(TASKS)]
    assert {task.status for task in tasks} == {"PENDING"}

    replica = next(each for each in ray.util.list_named_actors(True) if "jobs#Jobs" in each["name"])
    ray.kill(ray.get_actor(replica["name"], namespace=replica["namespace"]), no_restart=False)
    leader = cluster.admin().describe_topics(["jobs"])[0].partitions[0].leader_actor
    assert leader is not None
    ray.kill(ray.get_actor(leader, namespace="rayka"), no_restart=False)

    def outcomes() -> list[Any]:
        return [adapter.get_task_status_sync(task.id) for task in tasks]

    def statuses() -> Counter[str]:
        return Counter(outcome.status for outcome in outcomes())

    wait_until(
        lambda: statuses().keys() <= {"SUCCESS", "FAILURE"},
        ENOUGH_S,
        lambda: f"all tasks end: {statuses()}",
    )
    waits = []
    for number, (task, outcome) in enumerate(zip(tasks, outcomes(), strict=True)):
        if number % 10 == 3:
            assert (outcome.status, repr(outcome.result)) == ("FAILURE", f"ValueError('{number} is unlucky')")
        else:
            assert (outcome.status, outcome.result[0]) == ("SUCCESS", number**2)
            waits.append(outcome.result[1] - task.created_at)
    failed = rayka.Queue(name="jobs-failed")
    letters = {}
    while not failed.empty():
        letter = FailedTask(*failed.get(timeout=ENOUGH_S))
        letters[letter.task_id] = letter
    assert letters.keys() == {task.id for number, task in enumerate(tasks) if number % 10 == 3}
    assert all("in square" in letter.traceback for letter in letters.values())
    print(f"from enqueueing to start: p50 {statistics.median(waits) * 1000:.1f} ms with all {TASKS} enqueued at once")

    alone = []
    for _ in range(20):
        task = adapter.enqueue_task_sync("square", args=[1])
        wait_until(lambda task=task: adapter.get_task_status_sync(task.id).status == "SUCCESS", ENOUGH_S, "it ends")
        alone.append(adapter.get_task_status_sync(task.id).result[1] - task.created_at)
    print(f"from enqueueing to start: p50 {statistics.median(alone) * 1000:.1f} ms one at a time")
    answer = adapter.enqueue_task_sync("pid")
    wait_until(lambda: adapter.get_task_status_sync(answer.id).status == "SUCCESS", ENOUGH_S, "async handlers run")
    assert adapter.health_check_sync() == [{"jobs": {"ok": "pong"}}]
    wait_until(lambda: adapter.get_metrics_sync()["queue_length"] == 0, ENOUGH_S, "all tasks are acknowledged")
    serve.delete("jobs")


def test_replicas_follow_the_lag(cluster: Cluster) -> None:
    processor = config("growing")

    @serve.deployment(
        max_ongoing_requests=1,
        ray_actor_options={"num_cpus": 0},
        autoscaling_config=AutoscalingConfig(
            min_replicas=1,
            max_replicas=2,
            target_ongoing_requests=2,
            upscale_delay_s=0,
            metrics_interval_s=0.2,
            look_back_period_s=0.2,
            policy=AutoscalingPolicy(
                policy_function=QueueAutoscalingPolicy,
                policy_kwargs={"queue_name": "growing", "poll_interval_s": 0.2},
            ),
        ),
    )
    @task_consumer(task_processor_config=processor)
    class Sleepers:
        @task_handler(name="sleep")
        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)

    serve.run(Sleepers.bind(), name="growing", route_prefix=None)
    adapter = instantiate_adapter_from_config(processor)
    tasks = [adapter.enqueue_task_sync("sleep", args=[1]) for _ in range(300)]  # a replica may take a minute to start

    def replicas() -> int:
        deployment = serve.status().applications["growing"].deployments["Sleepers"]
        return deployment.replica_states.get("RUNNING", 0)

    wait_until(lambda: replicas() == 2, ENOUGH_S, "there are two replicas")
    for task in tasks:
        adapter.cancel_task_sync(task.id)
    wait_until(lambda: adapter.get_metrics_sync()["queue_length"] == 0, ENOUGH_S, "cancelled tasks are not run")
    serve.delete("growing")


def test_configurations_that_can_t_be_are_refused() -> None:
    with pytest.raises(TypeError, match="adapter_config"):
        RaykaTaskProcessorAdapter(TaskProcessorConfig(queue_name="q", adapter_config="redis://"))
    with pytest.raises(ValueError, match="max_retries"):
        RaykaTaskProcessorAdapter(config("q", max_retries=99))
    celery = CeleryAdapterConfig(broker_url="redis://localhost", backend_url="redis://localhost")
    RaykaTaskProcessorAdapter(TaskProcessorConfig(queue_name="q", adapter_config=celery))


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "serve" / "documents.py"],
        capture_output=True,
        text=True,
        timeout=860,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "the document has no text" in done.stdout
