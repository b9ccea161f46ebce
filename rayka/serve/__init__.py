"""Ray Serve's asynchronous inference with tasks in topics of rayka, instead of Celery with Redis or RabbitMQ.

Names are loaded when they are first used; they need Ray Serve (`rayka[serve]`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayka.lazy import lazy_names

if TYPE_CHECKING:
    from rayka.serve.adapter import RaykaAdapterConfig, RaykaTaskProcessorAdapter
    from rayka.serve.autoscaling import QueueAutoscalingPolicy

_MODULE_OF = {
    "QueueAutoscalingPolicy": "rayka.serve.autoscaling",
    "RaykaAdapterConfig": "rayka.serve.adapter",
    "RaykaTaskProcessorAdapter": "rayka.serve.adapter",
}
__all__ = ["QueueAutoscalingPolicy", "RaykaAdapterConfig", "RaykaTaskProcessorAdapter"]

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF, extra="serve")
