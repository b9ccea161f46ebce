"""Commands to the controller, from one process: implements `gateway.ports.ControllerPort`."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

import ray.exceptions

from rayka.actors.controller.watch import ImageWatch
from rayka.actors.named import call
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    AllocateProducerIds,
    AlterConfigs,
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FeatureUpdate,
    IncrementalAlterConfigs,
    NewPartitions,
    NewTopic,
    ReadVersion,
    TopicResult,
    UpdateFeatures,
)

logger = logging.getLogger(__name__)

_DEFAULT_TIMEOUT_S = 30.0
_SETTLE_TIMEOUT_S = 5.0
_RETRY_S = 0.1
_MAX_RETRY_S = 2.0


R = TypeVar("R")


async def execute_until_heard(controller: Any, request: ControllerRequest[R]) -> R:
    """Send a request again and again while the controller is away or answers with an error that may pass.

    The request may be carried out more than once. Raises RaykaError for an error that would be repeated.
    """
    retry_s = _RETRY_S
    while True:
        try:
            _, response = await call(controller.execute, request)
        except ray.exceptions.RayError as error:
            reason = f"the controller is unavailable ({type(error).__name__})"
        else:
            if not isinstance(response, RaykaError):
                found: R = response
                return found
            if not (response.code.retriable or response.code is ErrorCode.BROKER_NOT_AVAILABLE):
                raise response
            reason = str(response)
        logger.warning("sending %s again: %s", type(request).__name__, reason)
        await asyncio.sleep(retry_s)
        retry_s = min(2 * retry_s, _MAX_RETRY_S)


class ControllerClient:
    """Sends commands; each returns when this process' image shows what the command did."""

    def __init__(self, controller: Any, watch: ImageWatch, broker_id: int) -> None:
        self._controller = controller
        self._watch = watch
        self._broker_id = broker_id
        self._producer_ids = iter(range(0))
        self._allocation: asyncio.Task[None] | None = None

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        """Create topics; when it returns their leaders serve."""
        return await self._execute(CreateTopics(tuple(topics), validate_only), timeout_ms)

    async def delete_topics(self, topics: Sequence[str | uuid.UUID], timeout_ms: int) -> list[TopicResult]:
        """Delete topics by name or by id."""
        return await self._execute(DeleteTopics(tuple(topics)), timeout_ms)

    async def create_partitions(
        self, requests: Sequence[NewPartitions], validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        """Raise the number of partitions of topics."""
        return await self._execute(CreatePartitions(tuple(requests), validate_only), timeout_ms)

    async def incremental_alter_configs(
        self, alterations: Sequence[ConfigAlteration], validate_only: bool
    ) -> list[ConfigResult]:
        """Set, delete, append to or subtract from single settings."""
        return await self._execute(IncrementalAlterConfigs(tuple(alterations), validate_only))

    async def alter_configs(self, replacements: Sequence[ConfigReplacement], validate_only: bool) -> list[ConfigResult]:
        """Replace all settings of resources."""
        return await self._execute(AlterConfigs(tuple(replacements), validate_only))

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool, timeout_ms: int) -> None:
        """Change the levels of features."""
        await self._execute(UpdateFeatures(tuple(updates), validate_only), timeout_ms)

    async def allocate_producer_id(self) -> int:
        """A producer id that nobody has had, from a block that this process owns.

        Those that need the next block wait for it together, each for its own time, and if the controller refuses it
        they all get the error.
        """
        producer_id = next(self._producer_ids, None)
        return await self._next_producer_id() if producer_id is None else producer_id

    async def _next_producer_id(self) -> int:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _DEFAULT_TIMEOUT_S
        while (producer_id := next(self._producer_ids, None)) is None:
            if self._allocation is None:
                self._allocation = asyncio.ensure_future(self._allocate())
            # Not `asyncio.timeout`: a request runs in no task until it first waits.
            ended, _ = await asyncio.wait({self._allocation}, timeout=ends_s - loop.time())
            if not ended:
                raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, "the controller gave no producer ids in time")
            ended.pop().result()
        return producer_id

    async def _allocate(self) -> None:
        """Get the next block. A call without an answer ends without one: some that wait may have time for another."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _DEFAULT_TIMEOUT_S
        try:
            block = await self._execute(AllocateProducerIds(self._broker_id))
            self._producer_ids = iter(range(block.first, block.first + block.size))
        except RaykaError:
            if loop.time() < ends_s:
                raise
        finally:
            self._allocation = None

    async def catch_up(self) -> None:
        """Wait until this process' image is as new as the controller's at the time of the call.

        Raises REQUEST_TIMED_OUT if that takes too long or the controller is away.
        """
        version = await self._execute(ReadVersion())
        if self._watch.image.version < version:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"version {version} of the metadata did not arrive in time")

    async def _execute(self, request: ControllerRequest[R], timeout_ms: int = 0) -> R:
        timeout_s = timeout_ms / 1000 if timeout_ms > 0 else _DEFAULT_TIMEOUT_S
        name = type(request).__name__
        try:
            version, response = await asyncio.wait_for(
                call(self._controller.execute, request), min(timeout_s, _DEFAULT_TIMEOUT_S)
            )
        except TimeoutError:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"the controller did not answer {name} in time") from None
        except ray.exceptions.RayError as error:
            raise RaykaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the controller became unavailable during {name}: {type(error).__name__}"
            ) from error
        if isinstance(response, RaykaError):
            raise response
        await self._watch.wait_for(version, _SETTLE_TIMEOUT_S)
        found: R = response
        return found
