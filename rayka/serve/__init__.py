"""Ray Serve's asynchronous inference with tasks in topics of rayka, instead of Celery with Redis or RabbitMQ.

Names are loaded when they are first used; they need Ray Serve (`rayka[serve]`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayka.serve.adapter import RaykaAdapterConfig, RaykaTaskProcessorAdapter
    from rayka.serve.autoscaling import QueueAutoscalingPolicy

_MODULE_OF = {
    "QueueAutoscalingPolicy": "rayka.serve.autoscaling",
    "RaykaAdapterConfig": "rayka.serve.adapter",
    "RaykaTaskProcessorAdapter": "rayka.serve.adapter",
}
__all__ = ["QueueAutoscalingPolicy", "RaykaAdapterConfig", "RaykaTaskProcessorAdapter"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value
