"""Keeps a share consumer in its group: sends heartbeats and follows the assignment."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from typing import Final

from rayka.client.calls import in_time
from rayka.coordinator.groups.share.requests import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.gateway.share_groups import ShareGroups
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

_JOINS: Final = 0
_LEAVES: Final = -1
_RETRY_S: Final = 0.2
_TIMEOUT_S: Final = 10.0
"""How long a heartbeat waits for its answer; a member without heartbeats is removed after 45 seconds by default."""
_REMOVED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


class ShareConsumerMember:
    """One member. `changed` is set when there is another assignment, or `error`, which ends the membership."""

    def __init__(self, broker: Broker, group_id: str, topics: Sequence[str]) -> None:
        self.group_id = group_id
        self.member_id = str(uuid.uuid4())
        self.assignment: dict[TopicPartition, uuid.UUID] = {}
        self.changed = asyncio.Event()
        self.error: RaykaError | None = None
        self._broker = broker
        self._groups = ShareGroups(broker)
        self._topics = tuple(topics)
        self._epoch = _JOINS
        self._says_all = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self.error is None:
            await asyncio.sleep(await self._beat())

    async def _beat(self) -> float:
        """One heartbeat; returns the seconds until the next one.

        After a heartbeat that failed, or whose answer was lost, the next one has all fields: the coordinator's answer
        to that has the assignment, which the lost answer may have had.
        """
        topics = self._topics if self._says_all else None
        self._says_all = True
        request = ShareGroupHeartbeatRequest(self.group_id, self.member_id, self._epoch, subscribed_topic_names=topics)
        try:
            await self._broker.groups.coordinator_of(self.group_id)
            answer = await in_time(self._groups.heartbeat(request), _TIMEOUT_S, f"the coordinator of {self.group_id}")
            if answer.error is not ErrorCode.NONE:
                raise RaykaError(answer.error, answer.error_message or answer.error.name)
        except RaykaError as error:
            self._failed(error)
            return _RETRY_S
        except Exception:
            logger.exception("group %s: a heartbeat failed", self.group_id)
            return _RETRY_S
        return self._accepted(answer)

    def _accepted(self, answer: ShareGroupHeartbeatResponse) -> float:
        self._epoch = answer.member_epoch
        self._says_all = False
        if answer.assignment is not None and not self._assign(answer):
            self._says_all = True  # the image does not have a topic yet: ask for the assignment again
            return _RETRY_S
        return answer.heartbeat_interval_ms / 1000

    def _assign(self, answer: ShareGroupHeartbeatResponse) -> bool:
        """Take the assignment; False if a topic is not known here yet."""
        assert answer.assignment is not None
        names = self._broker.image.topic_names_by_id
        known = [(names.get(topic_id), topic_id, partitions) for topic_id, partitions in answer.assignment]
        self.assignment = {
            TopicPartition(name, partition): topic_id
            for name, topic_id, partitions in known
            if name is not None
            for partition in partitions
        }
        self.changed.set()
        return all(name is not None for name, _, _ in known)

    def _failed(self, error: RaykaError) -> None:
        if error.code in _REMOVED:
            self._epoch = _JOINS
            self.assignment = {}
        elif not error.code.retriable:
            self.error = error
            self.changed.set()

    async def leave(self) -> None:
        """Leave the group. What fails here ends with the session timeout."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            request = ShareGroupHeartbeatRequest(self.group_id, self.member_id, _LEAVES)
            await in_time(self._groups.heartbeat(request), _TIMEOUT_S, f"the coordinator of {self.group_id}")
        except RaykaError as error:
            logger.warning("group %s: could not leave: %s", self.group_id, error)
