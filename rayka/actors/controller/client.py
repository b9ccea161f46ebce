"""Commands to the controller, from one process: implements `gateway.ports.Controller`."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from typing import Any

import ray.exceptions

from rayka.actors.controller.watch import ImageWatch
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    NewPartitions,
    NewTopic,
    TopicResult,
)

logger = logging.getLogger(__name__)

_DEFAULT_TIMEOUT_S = 30.0
_SETTLE_TIMEOUT_S = 5.0
_RETRY_S = 0.1
_MAX_RETRY_S = 2.0


async def execute_until_heard(controller: Any, command: str, *arguments: Any) -> Any:
    """Send a command again and again while the controller is away or answers with an error that may pass.

    The command may be carried out more than once. Raises RaykaError for an error that would be repeated.
    """
    retry_s = _RETRY_S
    while True:
        try:
            _, response = await controller.execute.remote(command, *arguments)
        except ray.exceptions.RayError as error:
            reason = f"the controller is away ({type(error).__name__})"
        else:
            if not isinstance(response, RaykaError):
                return response
            if not (response.code.retriable or response.code is ErrorCode.BROKER_NOT_AVAILABLE):
                raise response
            reason = str(response)
        logger.warning("%s is sent again: %s", command, reason)
        await asyncio.sleep(retry_s)
        retry_s = min(2 * retry_s, _MAX_RETRY_S)


class ControllerClient:
    """Sends commands; each returns when this process' image shows what the command did."""

    def __init__(self, controller: Any, watch: ImageWatch, broker_id: int) -> None:
        self._controller = controller
        self._watch = watch
        self._broker_id = broker_id
        self._producer_ids = iter(range(0))

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        """Create topics; when it returns their leaders serve."""
        results: list[TopicResult] = await self._execute(
            "create_topics", tuple(topics), validate_only, timeout_ms=timeout_ms
        )
        return results

    async def delete_topics(self, topics: Sequence[str | uuid.UUID], timeout_ms: int) -> list[TopicResult]:
        """Delete topics by name or by id."""
        results: list[TopicResult] = await self._execute("delete_topics", tuple(topics), timeout_ms=timeout_ms)
        return results

    async def create_partitions(
        self, requests: Sequence[NewPartitions], validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        """Raise the number of partitions of topics."""
        results: list[TopicResult] = await self._execute(
            "create_partitions", tuple(requests), validate_only, timeout_ms=timeout_ms
        )
        return results

    async def incremental_alter_configs(
        self, alterations: Sequence[ConfigAlteration], validate_only: bool
    ) -> list[ConfigResult]:
        """Set, delete, append to or subtract from single settings."""
        results: list[ConfigResult] = await self._execute(
            "incremental_alter_configs", tuple(alterations), validate_only
        )
        return results

    async def alter_configs(self, replacements: Sequence[ConfigReplacement], validate_only: bool) -> list[ConfigResult]:
        """Replace all settings of resources."""
        results: list[ConfigResult] = await self._execute("alter_configs", tuple(replacements), validate_only)
        return results

    async def allocate_producer_id(self) -> int:
        """A producer id that nobody has had, from a block that this process owns."""
        producer_id = next(self._producer_ids, None)
        if producer_id is None:
            block = await self._execute("allocate_producer_ids", self._broker_id)
            self._producer_ids = iter(range(block.first, block.first + block.size))
            producer_id = next(self._producer_ids)
        return producer_id

    async def _execute(self, command: str, *arguments: Any, timeout_ms: int = 0) -> Any:
        timeout_s = timeout_ms / 1000 if timeout_ms > 0 else _DEFAULT_TIMEOUT_S
        try:
            version, response = await asyncio.wait_for(
                self._controller.execute.remote(command, *arguments), min(timeout_s, _DEFAULT_TIMEOUT_S)
            )
        except TimeoutError:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"the controller did not answer {command} in time") from None
        except ray.exceptions.RayError as error:
            raise RaykaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the controller went away during {command}: {type(error).__name__}"
            ) from error
        if isinstance(response, RaykaError):
            raise response
        await self._watch.wait_for(version, _SETTLE_TIMEOUT_S)
        return response
