"""The gateway actor: a listener for Kafka clients on one node, in a process of its own."""

from __future__ import annotations

import asyncio
import uuid

from rayka.actors.background import FAILURES_BEFORE_EXIT, exit_if_failed
from rayka.actors.controller.watch import ImageWatch, find_controller
from rayka.actors.node.interpreter import tune_interpreter
from rayka.actors.node.spec import NodeSpec
from rayka.actors.node.view import ClusterView
from rayka.gateway.server.listener import Listener


class GatewayActor:
    """Shell of `rayka.gateway`. After a restart by Ray it listens again on the same port."""

    def __init__(self, spec: NodeSpec, index: int) -> None:
        controller = find_controller(spec.namespace)
        watcher = f"{spec.gateway_name(index)}-{uuid.uuid4().hex[:8]}"
        self._watch = ImageWatch(controller, watcher, die_after=FAILURES_BEFORE_EXIT)
        self._view = ClusterView(controller, spec, self._watch)
        self._listener = Listener(self._view, spec.host, spec.port, usage_dir=spec.usage_dir)
        self._started = asyncio.ensure_future(self._start())
        self._started.add_done_callback(exit_if_failed)

    async def _start(self) -> None:
        await self._watch.start()
        await self._listener.start()
        tune_interpreter()

    async def ready(self) -> None:
        """Returns when it listens; raises what kept it from that."""
        await self._started

    async def lives(self) -> None:
        """Never returns: the call fails when this process dies."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Close the port, answer what is in progress, close the connections."""
        await self._listener.stop()
        await self._view.stop()
