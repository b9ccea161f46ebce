"""Fetch 0-18: parsed and answered by hand, with incremental sessions (KIP-227).

The leaders wait for data, not the gateway. They answer with slices of segment files, which are read piece by piece
as the client takes them. For versions 0-3 they are read at once, in a thread, and converted to message formats 0 and 1.
"""

from __future__ import annotations

import logging
import uuid
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rayka.errors import ErrorCode
from rayka.gateway.handlers.fetch.down_conversion import FIRST_WITH_MAGIC_2, Converted, Fetched, convert
from rayka.gateway.handlers.fetch.request import FIRST_WITH_TOPIC_ID, FIRST_WITH_ZSTD, FetchRequestData, parse
from rayka.gateway.handlers.fetch.response import Answered, FetchResponse
from rayka.gateway.handlers.fetch.sessions import NO_SESSION_ID, FetchContext, SessionPartition
from rayka.gateway.handlers.fetch.template import FIRST_VERSION, MOST_REQUEST_BYTES, FetchOptions, FetchTemplate
from rayka.gateway.server.context import Context
from rayka.gateway.server.limits import COPIED_BYTES
from rayka.gateway.server.request import PendingRequest
from rayka.gateway.server.segment_files import SegmentGone
from rayka.gateway.wire.leader_hints import LeaderHints
from rayka.metadata.image import MetadataImage
from rayka.types import FetchPartition, FetchResult, FileSlice, IsolationLevel, TopicPartition

logger = logging.getLogger("rayka.gateway")

T = TypeVar("T")

# A response is at most this large, and a partition's part of it at most its share, unless the client waits for more:
# clients take up a response when they have the last byte of it.
_RESPONSE_BYTES = 16 << 20
_LEAST_SHARE_BYTES = 512 << 10
# The longest wait, even if the client allows more: an empty response each minute costs nothing.
_LONGEST_WAIT_MS = 60_000
_ISOLATION_LEVELS = (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)


def handle(context: Context, pending: PendingRequest) -> None:
    """Ask the leaders; answer when they have.

    A client that reads one partition repeats its request except for the offset. `FetchTemplate` then replaces decoding
    and encoding; every other request takes the general path.
    """
    template = pending.connection.fetch_template
    partition = template.match(context, pending) if template is not None else None
    if template is None or partition is None:
        _begin(context, pending).start()
        return
    pending.connection.affinity.follow_process(template.process)
    future = context.broker.partitions.fetch((partition,), **template.options)
    _when_done(pending, future, partial(_respond_templated, context, pending, template))


def _respond_templated(
    context: Context, pending: PendingRequest, template: FetchTemplate, results: list[FetchResult]
) -> None:
    try:
        response = template.response(pending.correlation_id, results[0], context.segment_files)
    except OSError:  # the general path says so
        response = None
    if response is None:
        _begin(context, pending).resume(results)
    else:
        pending.answer_in_parts((response,))


def _when_done(pending: PendingRequest, future: Future[T], go_on: Callable[[T], None]) -> None:
    """Continue when the leaders have answered. The future is cancelled when the client leaves."""

    def done(future: Future[T]) -> None:
        pending.waiting = None
        if future.cancelled():
            pending.refuse("the fetch was cancelled")
            return
        try:
            go_on(future.result())
        except Exception:
            logger.exception("failed at %s", pending.describe())
            pending.refuse("internal error")

    if future.done():
        done(future)
    else:
        pending.waiting = future
        future.add_done_callback(done)


def _begin(context: Context, pending: PendingRequest) -> Fetch:
    request = parse(pending.frame, pending.position, pending.version)
    fetch = context.sessions.begin(
        request.session_id,
        request.session_epoch,
        request.partitions,
        request.forgotten,
        pending.version >= FIRST_WITH_TOPIC_ID,
        context.broker.now_ms(),
    )
    return Fetch(context, pending, request, fetch)


class Fetch:
    """One fetch under way. `results` has the answers known, in the order of the context's partitions."""

    def __init__(
        self, context: Context, pending: PendingRequest, request: FetchRequestData, fetch: FetchContext
    ) -> None:
        self._context = context
        self._pending = pending
        self._request = request
        self._fetch = fetch
        self._names: list[TopicPartition | None] = []
        self._results: list[FetchResult | None] = []
        self._indexes: list[int] = []
        self._last_try = False
        self._is_converted = pending.version < FIRST_WITH_MAGIC_2
        self._offsets: dict[int, int] = {}
        # If that was for one partition of this node; with the metadata that said so.
        self._asked: tuple[FetchPartition, FetchOptions, MetadataImage] | None = None
        self._deadline = context.loop.time() + _longest_wait_ms(request) / 1000

    def start(self) -> None:
        """Send on what can be read here."""
        self._name_partitions()
        if self._indexes:
            self._ask()
        else:
            self._respond()

    def resume(self, results: list[FetchResult]) -> None:
        """Respond with the leaders' answers, which are there already."""
        self._name_partitions()
        self._fetched(results if self._indexes else [])

    def _name_partitions(self) -> None:
        """Find the names, and refuse what is not read here."""
        image = self._context.broker.image
        for index, partition in enumerate(self._fetch.partitions):
            name = _name(partition, image)
            refusal = self._refusal(name) if name is not None else FetchResult(_unknown(partition, image))
            self._names.append(name)
            self._results.append(refusal)
            if refusal is None and name is not None:
                self._indexes.append(index)

    def _refusal(self, name: TopicPartition) -> FetchResult | None:
        if self._pending.version < FIRST_WITH_ZSTD and self._has_zstd(name.topic):
            return FetchResult(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if self._request.is_from_follower:
            return FetchResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._request.isolation not in _ISOLATION_LEVELS:
            return FetchResult(ErrorCode.INVALID_REQUEST)
        return None

    def _has_zstd(self, topic: str) -> bool:
        """Whether the topic's records are all compressed with a codec that these versions do not know (KIP-110)."""
        broker = self._context.broker
        own = broker.image.topic_configs(topic).get("compression.type")
        return (own or broker.config["compression.type"]) == "zstd"

    def _ask(self) -> None:
        request = self._request
        wanted = [self._wanted(index) for index in self._indexes]
        names = [one.topic_partition for one in wanted]
        is_copied, waits_for_more = self._is_copied(names), request.min_bytes > _LEAST_SHARE_BYTES
        response_bytes = COPIED_BYTES if is_copied else _RESPONSE_BYTES
        max_bytes = min(request.max_bytes, self._context.fetch_max_bytes)
        if is_copied or not waits_for_more:
            max_bytes = min(max_bytes, response_bytes)
        if not waits_for_more:
            share = max(_LEAST_SHARE_BYTES, response_bytes // len(wanted))
            wanted = [
                one._replace(max_bytes=share) if one.max_bytes > share or self._is_converted else one for one in wanted
            ]
        some_failed = len(wanted) < len(self._results)
        self._pending.connection.affinity.follow(names)
        options = FetchOptions(
            max_wait_ms=0 if some_failed or self._last_try else self._left_ms(),
            min_bytes=min(request.min_bytes, max_bytes),
            max_bytes=max_bytes,
            isolation=IsolationLevel(request.isolation),
        )
        if len(wanted) == 1 and not is_copied and not self._last_try:
            self._asked = wanted[0], options, self._context.broker.image
        future = self._context.broker.partitions.fetch(wanted, **options)
        _when_done(self._pending, future, self._fetched)

    def _is_copied(self, names: list[TopicPartition]) -> bool:
        """Whether this process has the records in memory, and does not send them from this node's files."""
        return self._is_converted or not self._context.broker.partitions.are_on_this_node(names)

    def _wanted(self, index: int) -> FetchPartition:
        name, partition = self._names[index], self._fetch.partitions[index]
        assert name is not None
        return FetchPartition(
            name,
            self._offsets.get(index, partition.fetch_offset),
            partition.max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
            partition.topic.bytes if isinstance(partition.topic, uuid.UUID) else None,
        )

    def _left_ms(self) -> int:
        """How long the leaders may still wait."""
        return max(round((self._deadline - self._context.loop.time()) * 1000), 0)

    def _fetched(self, results: list[FetchResult]) -> None:
        for index, result in zip(self._indexes, results, strict=True):
            self._results[index] = result if not result.error else self._failed(result)
        if self._is_converted:
            self._convert(results)
        else:
            self._respond()

    def _failed(self, result: FetchResult) -> FetchResult:
        """The error of a leader as Kafka answers it: to the id of a deleted topic INCONSISTENT_TOPIC_ID only within a
        session, which remembers its name."""
        is_unknown = result.error == ErrorCode.INCONSISTENT_TOPIC_ID and not self._fetch.incremental
        return result._replace(error=int(ErrorCode.UNKNOWN_TOPIC_ID)) if is_unknown else result

    def _convert(self, results: list[FetchResult]) -> None:
        fetched = [
            Fetched(result, self._wanted(index).fetch_offset, self._fetch.partitions[index].max_bytes)
            for index, result in zip(self._indexes, results, strict=True)
        ]
        max_bytes = min(self._request.max_bytes, self._context.fetch_max_bytes)
        try:
            future = convert(self._context, self._pending.version, fetched, max_bytes)
        except (OSError, SegmentGone) as error:
            self._cannot_read(error)
        else:
            _when_done(self._pending, future, self._converted)

    def _converted(self, converted: list[Converted]) -> None:
        """Respond, but if all records were of no use to the client, such as transaction markers, fetch what follows."""
        is_useless = not any(one.result.size or one.result.error for one in converted)
        moved = {
            index: one.next_offset
            for index, one in zip(self._indexes, converted, strict=True)
            if one.next_offset > self._wanted(index).fetch_offset
        }
        if moved and is_useless and not self._last_try:
            self._offsets |= moved
            self._ask()
            return
        for index, one in zip(self._indexes, converted, strict=True):
            self._results[index] = one.result
        self._respond()

    def _respond(self) -> None:
        """Put the response together."""
        answered = [
            (partition, name, result)
            for partition, name, result in zip(self._fetch.partitions, self._names, self._results, strict=True)
            if result is not None
        ]
        response = FetchResponse(
            self._pending.correlation_id, self._pending.version, LeaderHints(self._context.broker.image)
        )
        response.write(self._fetch.error, self._fetch.session_id, self._news(answered))
        try:
            parts = response.parts(self._context.segment_files)
        except (OSError, SegmentGone) as error:
            self._cannot_read(error)
        else:
            self._keep_template()
            self._pending.answer_in_parts(parts)

    def _keep_template(self) -> None:
        """The next request of this connection may be for the same partition.

        If the metadata changed while the leader waited, the id may stand for no topic now, or the leader be elsewhere.
        """
        pending, request, result = self._pending, self._request, self._results[0] if self._results else None
        is_alone = len(self._results) == 1 and request.is_outside_of_sessions
        if self._asked is None or not is_alone or result is None or result.records is None:
            return
        partition, options, image = self._asked
        is_new = image is not self._context.broker.image
        if is_new or pending.version < FIRST_VERSION or pending.size > MOST_REQUEST_BYTES:
            return
        options["max_wait_ms"] = _longest_wait_ms(request)
        empty = FetchResponse(0, pending.version, LeaderHints(self._context.broker.image))
        empty.write(ErrorCode.NONE, NO_SESSION_ID, [(self._fetch.partitions[0], self._names[0], FetchResult(0))])
        pending.connection.fetch_template = FetchTemplate(
            self._context, pending, request.offset_position, partition, options, empty.frame
        )

    def _news(self, answered: list[Answered]) -> list[Answered]:
        """What an incremental response must have. Asked again after a lost segment, everything is news."""
        return answered if self._last_try else [entry for entry in answered if self._fetch.admits(entry[0], entry[2])]

    def _cannot_read(self, error: OSError | SegmentGone) -> None:
        """If a segment went away between the leader's answer and the read, ask once more, then give up."""
        if isinstance(error, SegmentGone) and not self._last_try:
            self._last_try = True
            self._ask()
            return
        if isinstance(error, OSError):
            logger.error("cannot read records for %s: %s", self._pending.describe(), error)
        self._fail_read(is_checked=isinstance(error, OSError))

    def _fail_read(self, *, is_checked: bool) -> None:
        """Answer an error that makes the client refresh its metadata and try again, never a wrong offset."""
        failed = FetchResult(ErrorCode.KAFKA_STORAGE_ERROR)
        for index in self._indexes:
            result = self._results[index]
            if result is not None and result.records is not None:
                self._results[index] = failed
                if is_checked and isinstance(result.records, FileSlice):
                    self._context.broker.partitions.check_records(result.records)
        self._respond()


def _longest_wait_ms(request: FetchRequestData) -> int:
    return min(max(request.max_wait_ms, 0), _LONGEST_WAIT_MS)


def _name(partition: SessionPartition, image: MetadataImage) -> TopicPartition | None:
    """The partition by name, None if its topic id is not known."""
    topic = partition.topic
    if isinstance(topic, str):
        return TopicPartition(topic, partition.partition)
    name = image.topic_names_by_id.get(topic or uuid.UUID(int=0))
    if name is None:
        return None
    partition.name = name
    return TopicPartition(name, partition.partition)


def _unknown(partition: SessionPartition, image: MetadataImage) -> ErrorCode:
    """A session remembers which name an id stood for (KIP-516), and whether another topic has that name now."""
    if partition.name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    is_taken = partition.name in image.topics
    return ErrorCode.INCONSISTENT_TOPIC_ID if is_taken else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
