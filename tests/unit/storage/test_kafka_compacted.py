"""rayka takes over a compacted log of Apache Kafka's, with gaps, batches without records, a horizon and markers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rayka.storage.files import RealFiles
from rayka.storage.format.batch import read_header
from rayka.storage.format.records import read_records
from rayka.storage.log.log import Log
from tests.support.compaction import compact
from tests.support.logs import open_log, read_batches

DATA = Path(__file__).parents[2] / "data" / "kafka-compacted" / "compacted-0"
END = 414
YEAR_MS = 31_536_000_000
CLEAN = {"clean_shutdown": True, "recovery_point": END}


def open_copy(directory: Path, **how: object) -> Log:
    log = open_log(directory, cleanup_policy=("compact",), was_cleaned=True, **how)
    log.update_high_watermark(log.log_end_offset)
    return log


def expected() -> dict[bytes, bytes | None]:
    """The last value of each key."""
    last: dict[bytes, bytes | None] = {b"key-%d" % key: b"zstd-3-%d " % key * 5 for key in range(20)}
    last |= {b"key-%d" % key: None for key in range(0, 20, 4)}
    return last | {b"key-1": b"committed", b"key-3": b"committed", b"last": b"very last"}


def read(log: Log) -> dict[bytes, bytes | None]:
    return {record.key: record.value for batch in read_batches(log) for record in read_records(batch) if record.key}


@pytest.mark.parametrize("how", [CLEAN, {}, {"same_boot": True}], ids=["clean", "power cut", "killed"])
def test_every_record_is_there_and_nothing_is_cut_off(tmp_path: Path, how: dict[str, object]) -> None:
    directory = tmp_path / "log"
    shutil.copytree(DATA, directory)
    segments = {path.name: path.read_bytes() for path in directory.glob("*.log")}
    log = open_copy(directory, **how)
    assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset) == (0, END, END)
    assert read(log) == expected()
    assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == segments
    known = {int(batch.producer_id): batch.last_offset for batch in map(read_header, read_batches(log))}
    for producer_id, (last_offset, _) in log.active_producers.items():
        assert last_offset in (known[producer_id], known[producer_id] - 1), "the last batch, or the one before a marker"


def test_the_cleaner_goes_on_where_kafkas_stopped(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    shutil.copytree(DATA, directory)
    log = open_copy(directory, **CLEAN)
    now_ms = max(read_header(batch).max_timestamp for batch in read_batches(log)) + 10 * YEAR_MS
    log.append_as_leader(next(iter(read_last_batch(log))), 0, now_ms, origin_is_client=False)
    log.roll(now_ms)
    log.flush()
    log.update_high_watermark(log.log_end_offset)
    end = compact(log, now_ms, RealFiles(), cleaned_offset=410)
    assert end is not None
    assert end.end_offset == END + 1
    assert read(log) == {key: value for key, value in expected().items() if value is not None}


def read_last_batch(log: Log) -> list[bytearray]:
    return [bytearray(batch) for batch in read_batches(log)][-1:]
