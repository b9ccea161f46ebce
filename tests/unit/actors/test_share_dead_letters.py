"""Which records of a damaged log go along with their dead letters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayka.actors.share.dead_letters import _read
from rayka.storage.format.batch import iter_headers
from rayka.storage.log.log import Log
from tests.support.logs import NOW_MS, append, batch, open_log


def damage(log: Log, batch: int, place: int, damaged: bytes) -> None:
    """Overwrite a part of a batch, from a place in it on."""
    path = log._segments.active.path
    begin = [position for position, _ in iter_headers(Path(path).read_bytes())][batch] + place
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(damaged)


def read(log: Log, first_offset: int, last_offset: int) -> dict[int, bytes | None]:
    """The values at these offsets."""
    source: Any = SimpleNamespace(log=log)
    return {record.offset: record.value for record in _read(source, first_offset, last_offset)}


def test_no_letter_has_the_value_of_a_record_with_a_damaged_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        append(log, *(b"%d" % (3 * number + index) for index in range(3)))
    assert read(log, 4, 7) == {offset: b"%d" % offset for offset in range(4, 8)}
    damage(log, 1, 7, b"\x05")
    assert read(log, 1, 11) == {1: b"1", 2: b"2"}
    assert read(log, 4, 11) == {}


def test_a_batch_that_ends_behind_the_high_watermark_is_not_read_again_and_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"v")
    append(log, b"v")
    log.append_as_leader(batch(b"v") + batch(b"v"), 0, NOW_MS)
    damage(log, 1, 11, b"\x50")
    assert log.high_watermark == 2
    assert read(log, 0, 1) == {0: b"v"}
