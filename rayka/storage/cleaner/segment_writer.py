"""Writing one cleaned segment: log, indexes and aborted transactions, in files that end in `.cleaned`."""

from __future__ import annotations

import contextlib
import os

from rayka.storage.cleaner.batches import (
    ENTRIES,
    MAX_TIMESTAMP,
    OFFSET_OF_MAX,
    OUT,
    POSITION,
    SEGMENT_SIZE,
    SINCE_ENTRY,
)
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.files import RealFiles
from rayka.storage.segments.index import OffsetIndex, TimeIndex
from rayka.storage.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from rayka.storage.segments.transaction_index import AbortedTxn, TransactionIndex
from rayka.types import NO_TIMESTAMP


class SegmentWriter:
    """Creates new files. Methods raise OSError; then, or when it is not wanted any more, `discard` removes them."""

    def __init__(self, files: RealFiles, directory: str, base_offset: int, index_bytes: int) -> None:
        self.base_offset = base_offset
        self._files = files
        self._directory = directory
        self._paths = {
            suffix: os.path.join(directory, file_name(base_offset, suffix) + CLEANED_SUFFIX)
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
        }
        for path in self._paths.values():
            files.remove_if_present(path)
        self._offset_index = OffsetIndex(files, self._paths[INDEX_SUFFIX], base_offset, index_bytes)
        self._time_index = TimeIndex(files, self._paths[TIME_INDEX_SUFFIX], base_offset, index_bytes)
        self._offset_index.reset()
        self._time_index.reset()
        self._descriptor = files.open(self._paths[LOG_SUFFIX], create=True)
        self.size = 0

    def begin(self, progress: Longs) -> None:
        """Reset `progress` to that of a segment without batches."""
        progress[[OUT, ENTRIES, SEGMENT_SIZE, SINCE_ENTRY, POSITION]] = 0
        progress[MAX_TIMESTAMP], progress[OFFSET_OF_MAX] = NO_TIMESTAMP, self.base_offset

    def write(self, out: Bytes, index: Longs, progress: Longs) -> int:
        """Write what was gathered in `out` and `index`, and begin to gather again; the number of bytes."""
        size = int(progress[OUT])
        self._files.write_fully(self._descriptor, out[:size].data, self.size)
        for row in index[: progress[ENTRIES]].tolist():
            last_offset, position, timestamp, offset = row
            self._offset_index.append(last_offset, position)
            self._time_index.append_if_later(timestamp, offset)
        progress[[OUT, ENTRIES]] = 0
        self.size += size
        return size

    def finish(self, progress: Longs, aborted: list[AbortedTxn], modified_ms: int) -> None:
        """Complete the files, put them on the device, and close them."""
        self._time_index.append_if_later(int(progress[MAX_TIMESTAMP]), int(progress[OFFSET_OF_MAX]))
        self._offset_index.freeze()
        self._time_index.freeze()
        paths = [self._paths[INDEX_SUFFIX], self._paths[TIME_INDEX_SUFFIX]]
        if aborted:
            transaction_index = TransactionIndex(self._files, self._paths[TRANSACTION_INDEX_SUFFIX])
            for each in sorted(aborted, key=lambda each: each.last_offset):
                transaction_index.append(each)
            transaction_index.freeze()
            paths.append(transaction_index.path)
        self._files.set_modified_ms(self._paths[LOG_SUFFIX], modified_ms)
        self._files.sync(self._descriptor)
        for path in paths:
            self._files.sync_path(path)
        self._files.sync_path(self._directory)
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._files.close(descriptor)

    def discard(self) -> None:
        """Remove the files, as far as that is possible."""
        with contextlib.suppress(OSError):
            self.close()
        for path in self._paths.values():
            with contextlib.suppress(OSError):
                self._files.remove_if_present(path)
