"""The broker as one process sees it: implements `gateway.ports.Broker`.

A gateway and a Python client both follow the image and hold a router to the partition leaders and a client
of the controller. All of it is a cache.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rayka.actors.channel.link import LeaderClient
from rayka.actors.channel.router import Router
from rayka.actors.controller.client import ControllerClient
from rayka.actors.controller.watch import ImageWatch
from rayka.actors.coordinator.router import CoordinatorRouter
from rayka.actors.named import joined_node
from rayka.actors.node.spec import NodeSpec
from rayka.actors.share.router import ShareRouter
from rayka.config import BrokerConfig
from rayka.coordinator.groups.spec import GROUPS
from rayka.coordinator.shares.spec import SHARES
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.metadata.image import MetadataImage


class ClusterView:
    """`spec` is the node's through which this process came to the cluster; `watch` follows the image.

    `own` are the links to partition actors that live in this process.
    """

    def __init__(
        self, controller: Any, spec: NodeSpec, watch: ImageWatch, own: Mapping[str, LeaderClient] | None = None
    ) -> None:
        self._spec = spec
        self._watch = watch
        self._config = self._static = BrokerConfig.parse({**spec.configs, "node.id": str(spec.broker_id)})
        self._configs: object = None
        self.partitions = Router(lambda: watch.image, joined_node(), spec.socket_dir, spec.namespace, own=own)
        watch.shown.append(self.partitions.image_changed)
        self.controller = ControllerClient(controller, watch, spec.broker_id)
        self.groups = CoordinatorRouter(
            GROUPS, self.partitions, self.controller, lambda: watch.image, lambda: self.config
        )
        self.shares = CoordinatorRouter(
            SHARES, self.partitions, self.controller, lambda: watch.image, lambda: self.config
        )
        self.transactions = CoordinatorRouter(
            TRANSACTIONS, self.partitions, self.controller, lambda: watch.image, lambda: self.config
        )

        self.share_leaders = ShareRouter(self.partitions)

    async def stop(self) -> None:
        """Close the links and stop following the image."""
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
        configs = self._watch.image.configs
        if configs is not self._configs:
            self._configs = configs
            self._config = self._static.with_dynamic(self._watch.image.broker_configs(self._spec.broker_id))
        return self._config

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
