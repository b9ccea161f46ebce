"""Sends requests to a partition actor in another process of this node, over its local channel."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

from rayka.actors.channel.link import CALL_TIMEOUT_S, GRACE_S, AppendDone, Done, FetchDone
from rayka.actors.channel.requests import AppendedRecords, AppendFrame, FetchParams, LeaderRequest
from rayka.actors.channel.socket import LocalChannel
from rayka.types import AppendParams, AppendRequest


class ChannelLeaderClient:
    """Sends requests as frames."""

    is_in_process = False

    def __init__(self, path: str) -> None:
        self._channel = LocalChannel(path)

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """As `LeaderClient.append`; the record bytes follow the frame, uncopied."""
        frame, payload = append_frame(requests, params)
        self._channel.request(frame, done, payload=payload, timeout_s=params.timeout_ms / 1000 + GRACE_S)

    def fetch(self, params: FetchParams, done: FetchDone) -> Hashable:
        """As `LeaderClient.fetch`; the results say where the records are."""
        return self._channel.request(params, done, timeout_s=params.max_wait_s + GRACE_S)

    def cancel(self, key: Hashable) -> None:
        """As `LeaderClient.cancel`."""
        self._channel.cancel(cast("int", key))

    def ask(self, request: LeaderRequest, done: Done, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """As `LeaderClient.ask`."""
        self._channel.request(request, done, timeout_s=timeout_s)

    def close(self) -> None:
        """As `LeaderClient.close`."""
        self._channel.close()


def append_frame(requests: Sequence[AppendRequest], params: AppendParams) -> tuple[AppendFrame, list[memoryview]]:
    """An append without its record bytes, and these."""
    partitions = tuple(
        [AppendedRecords(topic_partition, epoch, len(records)) for topic_partition, records, epoch in requests]
    )
    return AppendFrame(params, partitions), [request.records for request in requests]
