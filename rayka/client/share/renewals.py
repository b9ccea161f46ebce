"""Renewing the locks of the records that a pool of actors has."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rayka.client.share.commits import ONE_IS_LOST
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.client.share.records import ShareRecord
from rayka.types import TopicIdPartition

logger = logging.getLogger(__name__)

_LEAST_INTERVAL_S: Final = 0.1


class Renewals:
    """Renews each partition by itself, with a bound: a leader that does not answer must not let locks at others expire.

    A round starts a third of the lock duration after the last one has ended, and takes at most half of that.
    """

    def __init__(self, consumer: AsyncShareConsumer, leased: Callable[[], Iterable[ShareRecord]]) -> None:
        """`leased` returns the records to renew."""
        self._consumer = consumer
        self._leased = leased

    async def run(self) -> None:
        """Never returns."""
        while True:
            interval_s = max(_LEAST_INTERVAL_S, self._consumer.lock_duration_ms / 3000)
            await asyncio.sleep(interval_s)
            by_partition: dict[TopicIdPartition, list[ShareRecord]] = defaultdict(list)
            for record in self._leased():
                by_partition[record.topic_id_partition].append(record)
            await asyncio.gather(*(self._renew(records, interval_s / 2) for records in by_partition.values()))

    async def _renew(self, records: Sequence[ShareRecord], timeout_s: float) -> None:
        """Renew records of one partition. After an error that may pass, the next round tries again."""
        try:
            async with asyncio.timeout(timeout_s):
                (error,) = (await self._consumer.renew_all(records)).values()
                if error is not None and error.code in ONE_IS_LOST:
                    held = filter(self._consumer.holds, records)
                    await asyncio.gather(*(self._consumer.renew_all([record]) for record in held))
        except TimeoutError:
            logger.warning("%s: no lock was renewed in %g s", records[0].topic_partition, timeout_s)
