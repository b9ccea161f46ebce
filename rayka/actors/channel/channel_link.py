"""The way to a partition actor in another process of this node, over its local channel."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

from rayka.actors.channel.frames import Operation
from rayka.actors.channel.link import CALL_TIMEOUT_S, GRACE_S, AppendDone, CallDone, FetchDone, FetchParams
from rayka.actors.channel.socket import ChannelClosed, LocalChannel
from rayka.types import (
    AbortedTransaction,
    AppendParams,
    AppendRequest,
    AppendResult,
    FetchResult,
    FileSlice,
    RecordError,
)


class ChannelLeaderClient:
    """Puts requests into frames and makes results of the answers."""

    is_in_process = False

    def __init__(self, path: str) -> None:
        self._channel = LocalChannel(path)

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """As `LeaderClient.append`; the record bytes go behind the frame, uncopied."""
        control, payload, size = append_control(requests, params)
        self._channel.request(
            Operation.APPEND,
            control,
            lambda answer: done(append_results(answer)),
            payload=payload,
            payload_size=size,
            timeout_s=params.timeout_ms / 1000 + GRACE_S,
        )

    def fetch(self, order: FetchParams, done: FetchDone) -> Hashable:
        """As `LeaderClient.fetch`; the results say where the records lie."""
        return self._channel.request(
            Operation.FETCH,
            order,
            lambda answer: done(fetch_results(answer)),
            timeout_s=order.max_wait_s + GRACE_S,
        )

    def cancel(self, key: Hashable) -> None:
        """As `LeaderClient.cancel`."""
        self._channel.cancel(cast("int", key))

    def call(self, method: str, arguments: Sequence[Any], done: CallDone, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """As `LeaderClient.call`."""
        self._channel.request(Operation.CALL, (method, arguments), done, timeout_s=timeout_s)

    def close(self) -> None:
        """As `LeaderClient.close`."""
        self._channel.close()


def append_control(requests: Sequence[AppendRequest], params: AppendParams) -> tuple[list[Any], list[memoryview], int]:
    """The control part of an append (its params and a row for each batch), its payload, and the payload's size."""
    control: list[Any] = [params]
    payload = []
    size = 0
    for topic_partition, records, leader_epoch in requests:
        length = len(records)
        control.append((topic_partition, leader_epoch, length))
        payload.append(records)
        size += length
    return control, payload, size


def append_results(answer: Any) -> list[AppendResult] | ChannelClosed:
    """The results in an answer's control part."""
    return answer if isinstance(answer, ChannelClosed) else [_append_result(*row) for row in answer]


def _append_result(
    error: int, base_offset: int, log_append_time_ms: int, log_start_offset: int, message: str | None, errors: Any
) -> AppendResult:
    record_errors = tuple(RecordError(*one) for one in errors) if errors else ()
    return AppendResult(error, base_offset, log_append_time_ms, log_start_offset, message, record_errors)


def fetch_results(answer: Any) -> list[FetchResult] | ChannelClosed:
    """The results in an answer's control part."""
    return answer if isinstance(answer, ChannelClosed) else [_fetch_result(*row) for row in answer]


def _fetch_result(
    error: int, high_watermark: int, last_stable_offset: int, log_start_offset: int, aborted: Any, records: Any
) -> FetchResult:
    return FetchResult(
        error,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        None if aborted is None else tuple(AbortedTransaction(*one) for one in aborted),
        FileSlice(*records) if isinstance(records, tuple) else records,
    )
