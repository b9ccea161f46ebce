"""Partitions that a whole run of the broker could not open: what a clean stop says of them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from rayka.config import LogConfig
from rayka.storage.directory.boot_record import BOOT_ID_FILE
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from tests.support.logs import NOW_MS, ORDERS, append

TOPIC_ID = uuid.UUID("0c706bbf-b9a6-483a-9aa2-a53a5dd0570a")


def start(path: Path) -> LogDirectory:
    """The directory, none of whose partitions is open yet."""
    directory = LogDirectory.open(str(path), RealFiles(), now_ms=NOW_MS)
    directory.opened()
    return directory


def open_log(directory: LogDirectory) -> Log:
    """The log of `orders-0`."""
    return directory.open_log(ORDERS, TOPIC_ID, LogConfig(), now_ms=NOW_MS)


def stop(directory: LogDirectory, log: Log, how: str) -> None:
    """The end of the run that wrote the records."""
    if how == "clean":
        directory.close([log], now_ms=NOW_MS)
    else:
        log.release()
        directory.release()


@pytest.mark.parametrize(("how", "end"), [("killed", 0), ("clean", 6)])
def test_a_clean_stop_says_nothing_of_a_partition_that_was_not_opened_since_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, end: int
) -> None:
    """Nobody has flushed it: at the next start it is examined as a whole, unless it was closed the time before."""
    monkeypatch.setattr("rayka.storage.segments.index.WRITE_BYTES", 8)  # indexes that a start can rely on
    directory = start(tmp_path)
    log = open_log(directory)
    for _ in range(6):
        append(log, b"x" * 5000)
    stop(directory, log, how)
    start(tmp_path).close([], now_ms=NOW_MS)
    segment = tmp_path / "orders-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[70] ^= 1  # the power cut that no flush came before
    segment.write_bytes(data)
    start(tmp_path).close([], now_ms=NOW_MS)
    directory = start(tmp_path)
    log = open_log(directory)
    assert log.log_end_offset == end
    directory.close([log], now_ms=NOW_MS)
    directory = start(tmp_path)
    assert open_log(directory).log_end_offset == end


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_clean_stop_says_nothing_of_a_log_that_was_let_go_of_before_it(tmp_path: Path, is_killed: bool) -> None:
    """As where its put journals could not be read, or its files not set aside: nobody has flushed it."""
    directory = start(tmp_path)
    directory.close([open_log(directory)], now_ms=NOW_MS)
    directory = start(tmp_path)
    log = open_log(directory)
    for _ in range(6):
        append(log, b"x" * 5000)
    log.release()
    if is_killed:
        directory.release()
        directory = start(tmp_path)
        open_log(directory).release()
    directory.close([], now_ms=NOW_MS)
    segment = tmp_path / "orders-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1  # the power cut
    segment.write_bytes(data)
    assert open_log(start(tmp_path)).log_end_offset == 5


@pytest.mark.parametrize("is_opened", [True, False])
def test_the_boot_record_does_not_keep_the_name_of_a_deleted_partition(tmp_path: Path, is_opened: bool) -> None:
    """Neither in this run nor, after a kill, in the next ones: the names of all topics ever deleted would pile up."""
    directory = start(tmp_path)
    log = open_log(directory)
    append(log, b"x")
    stop(directory, log, "killed")
    (tmp_path / BOOT_ID_FILE).write_text("another boot\n")
    directory = start(tmp_path)
    assert "orders-0" in (tmp_path / BOOT_ID_FILE).read_text()
    if is_opened:
        directory.delete_log(open_log(directory), "unique")
    else:
        directory.delete_unopened(ORDERS, TOPIC_ID, "unique")
    directory.release()
    for _ in range(2):
        directory = start(tmp_path)
        assert "orders-0" not in (tmp_path / BOOT_ID_FILE).read_text()
        directory.release()


def test_a_deletion_before_the_boot_record_is_written_leaves_the_note_of_a_failed_flush(tmp_path: Path) -> None:
    """Until the logs are recovered the note is that of the last run, and all of them still need it."""
    directory = start(tmp_path)
    log = open_log(directory)
    append(log, b"x")
    directory._boot.unrecovered.add(str(ORDERS))
    directory._boot.flush_failed()
    stop(directory, log, "killed")
    noted = (tmp_path / BOOT_ID_FILE).read_bytes()
    directory = LogDirectory.open(str(tmp_path), RealFiles(), now_ms=NOW_MS)
    directory.delete_unopened(ORDERS, TOPIC_ID, "unique")
    assert (tmp_path / BOOT_ID_FILE).read_bytes() == noted
    directory.opened()
    assert "orders-0" not in (tmp_path / BOOT_ID_FILE).read_text()
