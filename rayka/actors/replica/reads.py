"""Reads of the replicas of one process: fetches, and searches for offsets by time.

A fetch waits until there are enough bytes. What is only in the remote store is read there (KIP-405).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Hashable, Sequence

from rayka.actors.channel.link import Done, FetchDone
from rayka.actors.channel.requests import FetchParams
from rayka.actors.replica.remote_tier import IN_REMOTE_STORE, RemoteTier, unreachable
from rayka.replica.purgatory import DelayedFetch, Purgatory
from rayka.replica.replicas import Replicas
from rayka.types import FetchResult, IsolationLevel, OffsetQuery, TopicPartition

logger = logging.getLogger(__name__)


class Reads:
    """Without `remote`, what is only in the remote store is answered with an error."""

    def __init__(self, replicas: Replicas) -> None:
        self.remote: RemoteTier | None = None
        self._replicas = replicas
        self._purgatory = Purgatory()
        self._keys = itertools.count()
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}  # when delayed fetches are answered at the latest
        self._loop = asyncio.get_running_loop()

    def fetch(self, params: FetchParams, done: FetchDone) -> Hashable:
        """Read, and answer if there is enough; otherwise keep the fetch until there is, or its time is over.

        Returns the key of a fetch that is kept, None if it was answered.
        """
        results = self._replicas.fetch(params.partitions, params.max_bytes, params.isolation)
        missing = params.min_bytes - sum(result.size for result in results)
        if any(result.error for result in results):
            self._answer_with_remote(params, results, done)
            return None
        if missing <= 0 or params.max_wait_s <= 0 or any(result.has_more for result in results):
            done(results)
            return None
        key = next(self._keys)
        self._purgatory.add_fetch(
            DelayedFetch(key, done, params.partitions, params.max_bytes, params.isolation, missing)
        )
        self._timers[key] = self._loop.call_later(params.max_wait_s, self._timed_out, key)
        return key

    def cancel(self, key: Hashable) -> None:
        """Forget a fetch whose caller no longer waits."""
        self._purgatory.take_fetch(key)
        self._cancel_timer(key)

    def more_bytes(self, topic_partition: TopicPartition, size: int) -> None:
        """`size` more bytes are visible: answer the fetches that now have enough."""
        for fetch in self._purgatory.more_bytes(topic_partition, size):
            if self._replicas.are_readable(fetch.partitions, fetch.isolation):
                self._answer(fetch)
            else:  # the bytes are of an open transaction
                fetch.missing_bytes = 1
                self._purgatory.add_fetch(fetch)

    def released(self, topic_partition: TopicPartition) -> None:
        """The partition changed its role, left or failed: answer the fetches that wait for it."""
        for fetch in self._purgatory.take_fetches_of(topic_partition):
            self._answer(fetch)

    def list_offsets(self, queries: Sequence[OffsetQuery], isolation: IsolationLevel, done: Done) -> None:
        """Search for offsets by time."""
        answers = self._replicas.list_offsets(queries, isolation)
        if not any(answer.error == IN_REMOTE_STORE for answer in answers):
            done(answers)
        elif self.remote is None:
            done([unreachable(answer) for answer in answers])
        else:
            self.remote.list_offsets(queries, isolation, answers, done)

    def _cancel_timer(self, key: Hashable) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _timed_out(self, key: Hashable) -> None:
        del self._timers[key]
        fetch = self._purgatory.take_fetch(key)
        if fetch is not None:
            self._answer(fetch)

    def _answer(self, fetch: DelayedFetch) -> None:
        """Answer a fetch that was kept. It may fail, but not what it has waited for, nor another fetch."""
        try:
            results = self._replicas.fetch(fetch.partitions, fetch.max_bytes, fetch.isolation)
            self._answer_with_remote(fetch, results, fetch.done)
        except Exception:
            logger.exception("a waiting fetch can't be answered: %s", fetch.partitions)
        self._cancel_timer(fetch.key)

    def _answer_with_remote(
        self, fetch: FetchParams | DelayedFetch, results: list[FetchResult], done: Callable[[list[FetchResult]], None]
    ) -> None:
        """Answer a fetch, after what is only in the remote store was read there."""
        for result in results:
            if result.error == IN_REMOTE_STORE:
                break
        else:
            done(results)
            return
        if self.remote is None:
            done([unreachable(result) for result in results])
        else:
            self.remote.fetch(fetch, results, done)
