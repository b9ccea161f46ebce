"""The broker as one process sees it: implements `gateway.ports.Broker`.

A gateway and a Python client hold the same thing: the image, which they follow; the router to the
partition leaders; the way to the controller. All of it is a cache.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import ray

from rayka.actors.controller_client import ControllerClient
from rayka.actors.image_watch import ImageWatch
from rayka.actors.router import Router
from rayka.actors.spec import NodeSpec
from rayka.config import BrokerConfig
from rayka.metadata.image import MetadataImage


class ClusterView:
    """`spec` is the node's through which this process came to the cluster; `name` tells the process apart."""

    def __init__(self, controller: Any, spec: NodeSpec, name: str) -> None:
        self._spec = spec
        self._watch = ImageWatch(controller, f"{name}-{uuid.uuid4().hex[:8]}", self._image_changed)
        self._config = BrokerConfig.parse(spec.configs)
        own_node = ray.get_runtime_context().get_node_id()
        self.partitions = Router(lambda: self._watch.image, own_node, spec.socket_dir, spec.namespace)
        self.controller = ControllerClient(controller, self._watch, spec.broker_id)

    async def start(self) -> None:
        """Get the image and follow it."""
        await self._watch.start()

    async def stop(self) -> None:
        """Let go of the links and the watch."""
        await self._watch.stop()
        self.partitions.close()

    @property
    def node_id(self) -> int:
        """The broker id of this node."""
        return self._spec.broker_id

    @property
    def image(self) -> MetadataImage:
        """The newest image this process knows."""
        return self._watch.image

    @property
    def config(self) -> BrokerConfig:
        """The node's settings, dynamic ones included."""
        return self._config

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def _image_changed(self, before: MetadataImage, after: MetadataImage) -> None:
        if before.configs is not after.configs:
            dynamic = after.broker_configs(self._spec.broker_id)
            self._config = self._config.with_dynamic(dynamic)
