"""The state of a log directory's disk, and the one place that decides what an I/O error does to it.

| state   | appends | reads, deletions | after                                     |
|---------|---------|------------------|-------------------------------------------|
| online  | yes     | yes              | the start, or a probe that succeeded      |
| failing | no      | yes              | a lack: of space, or of file descriptors  |
| offline | no      | no               | any other error, or a flush that failed   |

What is lacking may come back, so while a disk is failing its owner probes it. Nothing leads back from offline but a
restart: after a flush that failed, nobody knows which of the bytes that the system still shows are on the device.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from enum import Enum

from rayka.errors import RaykaError
from rayka.storage.files import storage_error


class State(Enum):
    """What a disk can be used for."""

    ONLINE = "online"
    FAILING = "failing"
    OFFLINE = "offline"


class Event(Enum):
    """What can happen to a disk."""

    LACK = "lack"
    ERROR = "error"
    PROBE_SUCCEEDED = "probe succeeded"


NO_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))
NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))

TRANSITIONS = {
    (State.ONLINE, Event.LACK): State.FAILING,
    (State.ONLINE, Event.ERROR): State.OFFLINE,
    (State.FAILING, Event.ERROR): State.OFFLINE,
    (State.FAILING, Event.PROBE_SUCCEEDED): State.ONLINE,
}
"""Every other event changes nothing."""


class DiskState:
    """Shared by a log directory and its logs, in any thread.

    `on_change` is called with the new state in whichever thread met the event, in the order of the changes. It must not
    bring about another event. `on_failed_flush` is called in the thread that met the first flush that failed, an append
    that the device refused, or a file system that has become read-only.
    """

    def __init__(self, path: str, on_failed_flush: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.state = State.ONLINE
        self.error: OSError | None = None
        """The error that led to the present state; None when online."""
        self.takes_appends = True
        self.on_change: Callable[[State], None] | None = None
        self._on_failed_flush = on_failed_flush
        self._has_failed_flush = False
        self._lock = threading.Lock()

    def check_readable(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when offline."""
        if self.state is State.OFFLINE and self.error is not None:
            raise storage_error(f"The log directory {self.path} is offline", self.error)

    def check_appendable(self) -> None:
        """Raises KAFKA_STORAGE_ERROR unless online."""
        if self.error is not None:
            raise storage_error(f"The log directory {self.path} is {self.state.value}", self.error)

    def failed(self, error: OSError) -> RaykaError:
        """Take note of an I/O error; the error for the caller."""
        is_lack = error.errno in NO_DESCRIPTORS or error.errno in NO_SPACE
        self._enter(Event.LACK if is_lack else Event.ERROR, error)
        if error.errno == errno.EROFS:  # the kernel has given up what it had not written yet
            self._note_failed_flush()
        return storage_error(f"Disk error in {self.path}", error)

    def append_failed(self, error: OSError) -> RaykaError:
        """Take note of an append that failed. A file system that then gives up what it had not written says EIO."""
        refusal = self.failed(error)
        if error.errno == errno.EIO:
            self._note_failed_flush()
        return refusal

    def flush_failed(self, error: OSError) -> RaykaError:
        """Take note of a flush that failed. Only one that could not open its files has lost nothing."""
        if error.errno in NO_DESCRIPTORS:
            self._enter(Event.LACK, error)
        else:
            self._enter(Event.ERROR, error)
            self._note_failed_flush()
        return storage_error(f"Flush failed in {self.path}", error)

    def _note_failed_flush(self) -> None:
        with self._lock:
            is_first, self._has_failed_flush = not self._has_failed_flush, True
        if is_first:
            self._on_failed_flush()

    def probe_succeeded(self) -> None:
        """Take note that files can be written, flushed and read again."""
        self._enter(Event.PROBE_SUCCEEDED, None)

    def _enter(self, event: Event, error: OSError | None) -> None:
        with self._lock:
            state = TRANSITIONS.get((self.state, event))
            if state is None:
                return
            self.state, self.error = state, error
            self.takes_appends = state is State.ONLINE
            if self.on_change is not None:
                self.on_change(state)
