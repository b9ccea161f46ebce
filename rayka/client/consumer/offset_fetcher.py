"""Looks up where reading begins in partitions without a position: after `assign`, `seek_to_end` or a reset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from rayka.client.consumer.positions import AssignedPartition
from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.types import OffsetAnswer, OffsetQuery, OffsetSpec

logger = logging.getLogger(__name__)

_RESET = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
Settle: TypeAlias = Callable[[AssignedPartition, RaykaError | None], object]
"""Takes a partition whose look-up has ended, and the error; without one its position is known."""


class OffsetFetcher:
    """The look-ups of one consumer. Lives in the event loop.

    `settle` is called for each partition, except for those that have been sought or given up meanwhile; `ended` is
    called at the end of each request.
    """

    def __init__(
        self,
        broker: Broker,
        config: ConsumerConfig,
        loop: asyncio.AbstractEventLoop,
        settle: Settle,
        ended: Callable[[], object],
    ) -> None:
        self._broker = broker
        self._config = config
        self._loop = loop
        self._settle = settle
        self._ended = ended
        self._searches: set[asyncio.Task[None]] = set()

    def find(self, states: Iterable[AssignedPartition]) -> None:
        """Look up the start of partitions without a position. Without a rule for it OFFSET_OUT_OF_RANGE is settled."""
        asked = []
        for state in states:
            spec = _RESET.get(self._config.auto_offset_reset) if state.reset is None else state.reset
            if spec is None:
                message = f"{state.topic_partition} has no position, and auto_offset_reset is none"
                self._settle(state, RaykaError(ErrorCode.OFFSET_OUT_OF_RANGE, message))
            else:
                state.is_fetching = True
                asked.append((state, state.round, OffsetQuery(state.topic_partition, spec)))
        if asked:
            search = self._loop.create_task(self._search(asked))
            self._searches.add(search)
            search.add_done_callback(self._searches.discard)

    def close(self) -> None:
        """Cancel what is under way."""
        for search in self._searches:
            search.cancel()

    async def _search(self, asked: Sequence[tuple[AssignedPartition, int, OffsetQuery]]) -> None:
        queries = [query for _, _, query in asked]
        try:
            answers = await self._broker.partitions.list_offsets(queries, self._config.isolation)
        except Exception as error:  # of any kind: nobody else would look again
            logger.info("offsets could not be looked up: %r", error)
            code = error.code if isinstance(error, RaykaError) else ErrorCode.NETWORK_EXCEPTION
            answers = [OffsetAnswer(code)] * len(asked)
        for (state, asked_in_round, _), answer in zip(asked, answers, strict=True):
            if state.round != asked_in_round:
                continue
            state.is_fetching = False
            if answer.error == ErrorCode.NONE:
                state.found(answer.offset)
                self._settle(state, None)
            else:
                message = f"{state.topic_partition} can't be read: its first or last offset could not be looked up"
                self._settle(state, RaykaError(ErrorCode(answer.error), message))
        self._ended()
