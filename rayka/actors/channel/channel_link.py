"""Sends requests to a partition actor in another process of this node, over its local channel."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from functools import partial
from typing import cast

from rayka.actors.channel.link import CALL_TIMEOUT_S, GRACE_S, AppendDone, Done, Failed, FetchDone
from rayka.actors.channel.memory_file import MOST_REQUEST_BYTES, MemoryFile, own_memory_file
from rayka.actors.channel.requests import (
    AppendedRecords,
    AppendFrame,
    AppendShared,
    FetchParams,
    LeaderRequest,
    SharedRecords,
    ShareMemory,
)
from rayka.actors.channel.socket import ChannelClosed, LocalChannel
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.types import AppendParams, AppendRequest, AppendResult

logger = logging.getLogger(__name__)


class ChannelLeaderClient:
    """Sends requests as frames."""

    is_in_process = False

    def __init__(self, path: str) -> None:
        self._channel = LocalChannel(path)
        self._asked = self._shared = -1  # the number of connections that had ended by then

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """As `LeaderClient.append`; the record bytes stay in shared memory or follow the frame, uncopied."""
        timeout_s = params.timeout_ms / 1000 + GRACE_S
        memory = own_memory_file()
        shared = None if memory is None else shared_frame(requests, params, memory)
        if memory is not None and shared is not None and self._has_shared(memory):
            checked = partial(self._shared_appended, done)
            self._channel.request(shared, checked, shared=[each.records for each in requests], timeout_s=timeout_s)
        else:
            frame, payload = append_frame(requests, params)
            self._channel.request(frame, done, payload=payload, timeout_s=timeout_s)

    def _has_shared(self, memory: MemoryFile) -> bool:
        """Whether the leader has mapped the memory, on this connection; ask it to, once for each."""
        losses = self._channel.losses
        if self._asked != losses:
            self._asked = losses
            self._channel.request(ShareMemory(memory.descriptor), self._memory_shared)
        return self._shared == losses

    def _shared_appended(self, done: AppendDone, answer: Sequence[AppendResult] | Failed) -> None:
        """What the leader could not read goes through the socket from now on: it may have mapped other memory."""
        results = () if isinstance(answer, Exception) else answer
        if isinstance(answer, RaykaError) or any(each.error == ErrorCode.CORRUPT_MESSAGE for each in results):
            self._shared = -1
        done(answer)

    def _memory_shared(self, answer: object) -> None:
        if answer is True:
            self._shared = self._channel.losses
        elif isinstance(answer, ChannelClosed) and not answer.sent:
            self._asked = -1
        else:
            logger.info("batches go through the socket: %s", answer)

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


def shared_frame(requests: Sequence[AppendRequest], params: AppendParams, memory: MemoryFile) -> AppendShared | None:
    """An append of batches that all lie in the memory file; None if one does not, or they are too many."""
    if sum(len(request.records) for request in requests) > MOST_REQUEST_BYTES:
        return None
    partitions = []
    for topic_partition, records, epoch, topic_id in requests:
        position = memory.position_of(records[RECORD_BATCH_OVERHEAD:])
        if position is None:
            return None
        header = bytes(records[:RECORD_BATCH_OVERHEAD])
        partitions.append(SharedRecords(topic_partition, epoch, header, position, len(records), topic_id))
    return AppendShared(params, tuple(partitions))


def append_frame(requests: Sequence[AppendRequest], params: AppendParams) -> tuple[AppendFrame, list[memoryview]]:
    """An append without its record bytes, and these."""
    partitions = tuple(
        [
            AppendedRecords(topic_partition, epoch, len(records), topic_id)
            for topic_partition, records, epoch, topic_id in requests
        ]
    )
    return AppendFrame(params, partitions), [request.records for request in requests]
