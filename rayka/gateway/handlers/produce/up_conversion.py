"""Produce 0-2: message sets of magic 0 and 1, converted to record batches before they go to their leaders.

As in Kafka, these versions may carry record batches too; they stay as they are.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial

from rayka.errors import RaykaError
from rayka.gateway.handlers.produce.request import ProduceRequest
from rayka.gateway.server.context import Context
from rayka.gateway.server.request import PendingRequest
from rayka.storage.format.legacy.message import has_old_magic
from rayka.types import AppendRequest, AppendResult

logger = logging.getLogger("rayka.gateway")


def needs_conversion(request: ProduceRequest) -> bool:
    """Whether the request has any message set of magic 0 or 1."""
    return any(has_old_magic(append.records) for append in request.appends)


def convert(context: Context, pending: PendingRequest, request: ProduceRequest, then: Callable[[], None]) -> None:
    """Convert in a thread; then the request has record batches, and faults for the sets that are broken."""
    limits = [_max_message_bytes(context, append) for append in request.appends]
    future = context.conversions.run(partial(_convert_all, request.appends, limits))
    future.add_done_callback(partial(_converted, pending, request, then))


def _converted(
    pending: PendingRequest,
    request: ProduceRequest,
    then: Callable[[], None],
    future: Future[list[AppendRequest | AppendResult]],
) -> None:
    if future.cancelled():
        pending.refuse("the conversion was cancelled")
        return
    try:
        _take(request, future.result())
        then()
    except Exception:
        logger.exception("failed at %s", pending.describe())
        pending.refuse("internal error")


def _take(request: ProduceRequest, converted: list[AppendRequest | AppendResult]) -> None:
    appends, indexes = [], []
    for index, one in zip(request.indexes, converted, strict=True):
        if isinstance(one, AppendRequest):
            appends.append(one)
            indexes.append(index)
        else:
            request.faults[index] = one
    request.appends, request.indexes = appends, indexes


def _max_message_bytes(context: Context, append: AppendRequest) -> int:
    broker = context.broker
    own = broker.image.topic_configs(append.topic_partition.topic).get("max.message.bytes")
    return int(own or broker.config["message.max.bytes"])


def _convert_all(appends: Sequence[AppendRequest], limits: Sequence[int]) -> list[AppendRequest | AppendResult]:
    pairs = zip(appends, limits, strict=True)
    return [_convert(append, limit) if has_old_magic(append.records) else append for append, limit in pairs]


def _convert(append: AppendRequest, max_message_bytes: int) -> AppendRequest | AppendResult:
    from rayka.storage.format.legacy.up_conversion import convert_up

    try:
        return append._replace(records=memoryview(convert_up(append.records, max_message_bytes=max_message_bytes)))
    except RaykaError as error:
        return AppendResult(error.code, error_message=str(error))
