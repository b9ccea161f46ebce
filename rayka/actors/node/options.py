"""The Ray options of every actor of a node."""

from __future__ import annotations

from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayka.actors.node.spec import NodeSpec

# Each actor serves many calls at once that wait (watch, lives, fetch).
_MAX_CONCURRENCY = 10_000


def actor_options(spec: NodeSpec, name: str) -> dict[str, Any]:
    """Pinned to its node, restarted by Ray, detached."""
    return {
        "name": name,
        "namespace": spec.namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": _MAX_CONCURRENCY,
        "num_cpus": 0,
        "get_if_exists": True,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(spec.node_id, soft=False),
    }
