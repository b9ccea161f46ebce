"""Statuses and results by task id: a compacted topic, whose newest record for an id counts.

A cancellation has a key of its own, so it can't take the place of a result that comes at the same time. Each process
that asks keeps the offsets of what it has seen, and reads to the end of the topic before it answers.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from typing import Any, Final, NamedTuple

from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from rayka.queue.items import dumps
from rayka.queue.settings import MAX_ITEM_BYTES, require_item_fits
from rayka.serve.task import Status
from rayka.types import OffsetSpec

SUFFIX: Final = ".results"
_CANCELLED: Final = b"cancelled:"
_STATUS: Final = "status"
_FETCH_BYTES: Final = 4 << 20
TEXT_LENGTH: Final = 10_000
"""The most characters that are kept of an error's text."""


class Outcome(NamedTuple):
    """The outcome of a task. `result` is what the handler returned, or the exception that it raised."""

    status: Status
    result: Any = None


class _StoredStatus(NamedTuple):
    """The newest status of a task, and the offset of its record."""

    offset: int
    status: Status


class Results:
    """The results of one queue; any number of threads may use it."""

    def __init__(self, cluster: Cluster, queue_name: str, expires_s: int) -> None:
        """Create the topic if it does not exist. Results are deleted after `expires_s` seconds."""
        self.topic = queue_name + SUFFIX
        configs: dict[str, str | int] = {
            "cleanup.policy": "compact,delete",
            "retention.ms": expires_s * 1000,
            "max.message.bytes": MAX_ITEM_BYTES,
        }
        try:
            cluster.admin().create_topic(self.topic, partitions=1, configs=configs)
        except RaykaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._producer = cluster.producer()
        self._reader = cluster.reader()
        self._lock = threading.Lock()
        self._topic_id: uuid.UUID | None = None
        self._position = 0
        self._statuses: dict[str, _StoredStatus] = {}
        self._cancelled: dict[str, int] = {}  # offsets, as those in `_statuses`
        self._log_start_offset = 0

    def write(self, task_id: str, status: Status, result: Any = None, *, is_only: bool = False) -> None:
        """Store a status, unless the task has ended; return when it is in the log.

        `is_only`: nobody else can have run the task, so it has no other result. What can't be pickled is stored as its
        text, and so is an exception that can't be unpickled. Raises RaykaError: MESSAGE_TOO_LARGE.
        """
        if not is_only and self.status(task_id) in (Status.SUCCESS, Status.FAILURE):
            return
        headers, value = [(_STATUS, status.encode())], _pickled(result)
        require_item_fits(len(value))
        self._producer.send(self.topic, value, key=task_id.encode(), headers=headers).get()

    def cancel(self, task_id: str) -> None:
        """Cancel a task, unless a worker has begun it."""
        self._producer.send(self.topic, b"", key=_CANCELLED + task_id.encode()).get()

    def status(self, task_id: str) -> Status:
        """The current status."""
        with self._lock:
            self._catch_up()
            return self._status(task_id)

    def read(self, task_id: str) -> Outcome:
        """The current status and result."""
        with self._lock:
            self._catch_up()
            status = self._status(task_id)
            stored = self._statuses.get(task_id)
        if stored is None or not status.is_final or status is Status.REVOKED:
            return Outcome(status)
        return self._read_at(stored.offset, task_id) or Outcome(Status.PENDING)

    def _status(self, task_id: str) -> Status:
        stored = self._statuses.get(task_id)
        status = Status.PENDING if stored is None else stored.status
        return Status.REVOKED if task_id in self._cancelled and not status.is_final else status

    def _catch_up(self) -> None:
        """Read to the end of the topic."""
        is_behind = True
        while is_behind:
            try:
                found = self._reader.fetch(self.topic, 0, self._position, _FETCH_BYTES)
            except RaykaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                self._position = self._reader.get_offsets_before(self.topic, 0, OffsetSpec.EARLIEST)[0]
                continue
            if self._topic_id not in (None, found.topic_id):
                self._begin_again()
                continue
            self._topic_id = found.topic_id
            for record in found.records:
                self._index(record)
            self._forget_below(found.log_start_offset)
            is_behind = found.next_offset > self._position and found.next_offset < found.high_watermark
            self._position = found.next_offset

    def _begin_again(self) -> None:
        """Read the topic from its beginning: it was deleted and created again."""
        self._topic_id, self._position, self._log_start_offset = None, 0, 0
        self._statuses, self._cancelled = {}, {}

    def _index(self, record: Any) -> None:
        if record.key.startswith(_CANCELLED):
            self._cancelled[record.key.removeprefix(_CANCELLED).decode()] = record.offset
        else:
            self._statuses[record.key.decode()] = _StoredStatus(record.offset, _status(record))

    def _forget_below(self, log_start_offset: int) -> None:
        """Forget results that have expired."""
        if log_start_offset > self._log_start_offset:
            self._log_start_offset = log_start_offset
            self._statuses = {key: one for key, one in self._statuses.items() if one.offset >= log_start_offset}
            self._cancelled = {key: offset for key, offset in self._cancelled.items() if offset >= log_start_offset}

    def _read_at(self, offset: int, task_id: str) -> Outcome | None:
        """The record at an offset, or the newer one that replaced it; None if it has expired."""
        try:
            records = self._reader.fetch(self.topic, 0, offset, 1).records
        except RaykaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            raise
        for record in records:
            if record.key == task_id.encode():
                return Outcome(_status(record), pickle.loads(record.value))
        return None

    def close(self) -> None:
        """Send the records that are still buffered."""
        self._producer.close()
        self._reader.close()


def _status(record: Any) -> Status:
    return Status(dict(record.headers)[_STATUS].decode())


def _pickled(result: Any) -> bytes:
    try:
        return _pickled_error(result) if isinstance(result, BaseException) else dumps(result)
    except Exception:
        return dumps(RuntimeError(repr(result)[:TEXT_LENGTH]) if isinstance(result, BaseException) else repr(result))


def _pickled_error(error: BaseException) -> bytes:
    """Many exceptions can be pickled and not unpickled. Raises what either raises."""
    data = dumps(error)
    require_item_fits(len(data))
    pickle.loads(data)
    return data
