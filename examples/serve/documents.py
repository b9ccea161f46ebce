"""Asynchronous inference with Ray Serve: an HTTP API takes documents, replicas summarize them in the background.

The program has the structure of the example in Ray's documentation of asynchronous inference. Only the line marked
below differs from a program for Celery and Redis: tasks and results are in topics of rayka, on the same Ray cluster.
"""

from __future__ import annotations

import tempfile
import time

import requests
from fastapi import FastAPI
from ray import serve
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import rayka
from rayka.testing import free_port

CONFIG = TaskProcessorConfig(
    queue_name="documents",
    # adapter_config=CeleryAdapterConfig(broker_url="redis://localhost:6379/0", backend_url="redis://localhost:6379/1"),
    adapter="rayka.serve.RaykaTaskProcessorAdapter",
    adapter_config={},
    max_retries=1,
    failed_task_queue_name="failed-documents",
)
api = FastAPI()


@serve.deployment(num_replicas=2, max_ongoing_requests=5, ray_actor_options={"num_cpus": 0})
@task_consumer(task_processor_config=CONFIG)
class Summarizer:
    """Runs in the background. Stands for a model."""

    @task_handler(name="summarize")
    def summarize(self, text: str, sentences: int = 1) -> dict[str, object]:
        """The first sentences and the number of words."""
        if not text.strip():
            raise ValueError("the document has no text")
        return {"summary": ". ".join(text.split(". ")[:sentences]), "words": len(text.split())}


@serve.deployment(ray_actor_options={"num_cpus": 0})
@serve.ingress(api)
class Documents:
    """Answers at once: with the id of a task, and later with its status."""

    def __init__(self, consumer: object) -> None:
        self.adapter = instantiate_adapter_from_config(CONFIG)

    @api.post("/documents")
    async def submit(self, document: dict[str, str]) -> dict[str, str]:
        """Enqueue a document."""
        task = await self.adapter.enqueue_task_async(task_name="summarize", kwargs={"text": document["text"]})
        return {"task_id": task.id, "status": task.status}

    @api.get("/documents/{task_id}")
    async def status(self, task_id: str) -> dict[str, object]:
        """The status, and the summary or the error."""
        task = await self.adapter.get_task_status_async(task_id)
        return {"status": task.status, "result": task.result if task.status == "SUCCESS" else str(task.result)}


def wait_for(url: str) -> dict[str, object]:
    """The outcome of a document."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = requests.get(url, timeout=120).json()
        if found["status"] in ("SUCCESS", "FAILURE"):
            return found
        time.sleep(0.1)
    raise TimeoutError(url)


with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0"):
    port = free_port()
    serve.start(http_options={"port": port})
    serve.run(Documents.bind(Summarizer.bind()))
    url = f"http://127.0.0.1:{port}/documents"
    texts = ["Logs are simple. They only grow.", "Queues lease. They forget nothing.", " "]
    ids = [requests.post(url, json={"text": text}, timeout=180).json()["task_id"] for text in texts]
    outcomes = [wait_for(f"{url}/{task_id}") for task_id in ids]
    for text, outcome in zip(texts, outcomes, strict=True):
        print(repr(text), "->", outcome)
    assert [outcome["status"] for outcome in outcomes] == ["SUCCESS", "SUCCESS", "FAILURE"]
    task_id, name, error, *_ = rayka.Queue(name="failed-documents").get(timeout=120)
    print(f"{name} {task_id} failed: {error}")
    assert (task_id, error) == (ids[2], "ValueError('the document has no text')")
    serve.shutdown()
