"""The actors that lead partitions, as the tests of an embedded broker ask them while they are killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import ray

from rayka.client.cluster import Cluster
from rayka.testing import wait_until

BACK_S = 120.0


def ask_leader(cluster: Cluster, topic: str, partition: int, question: Callable[[Any], Any]) -> Any:
    """The leader's answer, `question(actor)`, as soon as there is one: it may be starting again.

    Raises AssertionError with what was wrong instead after `BACK_S`.
    """
    answers: list[Any] = []
    errors: list[Exception] = []

    def has_answered() -> bool:
        leader = cluster.admin().describe_topics([topic])[0].partitions[partition].leader_actor
        try:
            answers.append(ray.get(question(ray.get_actor(leader or "", namespace="rayka"))))
        except (ray.exceptions.RayError, ValueError) as error:  # ValueError: there is no actor of that name
            errors.append(error)
        return bool(answers)

    wait_until(has_answered, BACK_S, lambda: f"an answer of the leader of {topic}-{partition}: {errors[-1:]}")
    return answers[0]


def leader_pid(cluster: Cluster, topic: str, partition: int) -> int:
    """The process that leads a partition."""
    pid = int(ask_leader(cluster, topic, partition, lambda actor: actor.process_id.remote()))
    assert pid != os.getpid()
    return pid


def kill_leader(cluster: Cluster, topic: str, partition: int) -> None:
    """kill -9 of the process that leads a partition."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader_pid(cluster, topic, partition), signal.SIGKILL)


def tables_given(cluster: Cluster, topic: str, partition: int = 0) -> int:
    """How many tables the leader has given to readers since it started."""
    published = ask_leader(cluster, topic, partition, lambda actor: actor.published.remote())
    return int(published.misses + published.hits)
