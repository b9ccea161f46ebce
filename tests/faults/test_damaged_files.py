"""Every byte of every file of a log cut, flipped or missing: what is before the damage stays, and nothing raises."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.storage.format.batch import iter_headers
from rayka.storage.log.log import Log
from tests.support.logs import NOW_MS, append, check_indexes, directory_bytes, open_log, read_batches
from tests.support.memory_disk import memory_path as memory_path

CONFIG = {"segment_bytes": 700, "index_interval_bytes": 100}
EPOCH = slice(12, 16)
"""The leader epoch in a batch: the CRC does not cover it, and nothing depends on it."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of some segments, left by kill -9: index files are behind, no final snapshot."""
    directory = tmp_path_factory.mktemp("original")
    log = open_log(directory, **CONFIG)
    for index in range(18):
        append(
            log, b"value %02d" % index, b"more %02d" % index, timestamp=NOW_MS + index,
            producer_id=5, producer_epoch=0, base_sequence=2 * index,
        )  # fmt: skip
    log._local.segments.active.flush_indexes()
    log._producers.take_snapshot(log.log_end_offset)
    log.release()
    return directory


@pytest.fixture(scope="module")
def batches(original: Path) -> list[bytes]:
    """What was appended."""
    log = open_log(shutil.copytree(original, original.parent / "intact", dirs_exist_ok=True), **CONFIG)
    log.update_high_watermark(log.log_end_offset)
    return list(read_batches(log))


@pytest.fixture(params=[True, False], ids=["same boot", "other boot"])
def same_boot(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def recover(directory: Path, same_boot: bool, **how: object) -> Log:
    """Opened after an unclean stop, twice with the same bytes, everything visible."""
    open_log(directory, same_boot=same_boot, **CONFIG, **how).release()
    once = directory_bytes(directory)
    log = open_log(directory, same_boot=same_boot, **CONFIG, **how)
    assert directory_bytes(directory) == once
    log.update_high_watermark(log.log_end_offset)
    return log


def without_epoch(batch: bytes) -> bytes:
    """A batch without the bytes that may differ."""
    return batch[: EPOCH.start] + batch[EPOCH.stop :]


def damaged(original: Path, scratch: Path, name: str) -> Iterator[tuple[int, Path]]:
    """A fresh copy of the directory for each byte of a file."""
    size = (original / name).stat().st_size
    for position in range(size):
        directory = scratch / str(position)
        shutil.copytree(original, directory)
        yield position, directory
        shutil.rmtree(directory)


def active_segment(original: Path) -> str:
    """The last `.log` file."""
    return max(path.name for path in original.glob("*.log"))


def kept_before(original: Path, batches: list[bytes], position: int) -> int:
    """How many batches lie wholly before a position of the active segment."""
    sizes = [header.size_in_bytes for _, header in iter_headers((original / active_segment(original)).read_bytes())]
    earlier = len(batches) - len(sizes)
    return earlier + sum(sum(sizes[: count + 1]) <= position for count in range(len(sizes)))


def test_a_segment_cut_at_any_byte_keeps_every_batch_before_the_cut(
    original: Path, batches: list[bytes], tmp_path: Path, same_boot: bool
) -> None:
    name = active_segment(original)
    for position, directory in damaged(original, tmp_path, name):
        with open(directory / name, "r+b") as file:
            file.truncate(position)
        log = recover(directory, same_boot)
        assert list(read_batches(log)) == batches[: kept_before(original, batches, position)]
        check_indexes(directory)


def test_a_flipped_byte_anywhere_keeps_every_batch_before_it(
    original: Path, batches: list[bytes], tmp_path: Path, same_boot: bool
) -> None:
    name = active_segment(original)
    for position, directory in damaged(original, tmp_path, name):
        data = bytearray((directory / name).read_bytes())
        data[position] ^= 1 << position % 8
        (directory / name).write_bytes(data)
        log = recover(directory, same_boot)
        read = [without_epoch(batch) for batch in read_batches(log)]
        assert len(read) >= kept_before(original, batches, position)
        assert read == [without_epoch(batch) for batch in batches[: len(read)]]
        check_indexes(directory)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing", "longer", "zeros"])
@pytest.mark.parametrize(
    "pattern", ["*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata"]
)
def test_damage_to_an_index_snapshot_or_checkpoint_loses_no_record(
    original: Path, batches: list[bytes], tmp_path: Path, same_boot: bool, pattern: str, damage: str
) -> None:
    names = sorted(path.name for path in original.glob(pattern))
    for name in [*names[:1], *names[-1:]]:
        size = (original / name).stat().st_size
        for position in range(size) if damage in ("flip", "cut") else [0]:
            directory = tmp_path / "copy"
            shutil.copytree(original, directory)
            _damage(directory / name, damage, position)
            log = recover(directory, same_boot, recovery_point=10)
            assert list(read_batches(log)) == batches
            for offset in range(len(batches) * 2):
                assert log.read(offset, 1, log.high_watermark) is not None
            assert append(log, b"next") == log.log_end_offset - 1
            shutil.rmtree(directory)


def _damage(path: Path, damage: str, position: int) -> None:
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "flip":
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
    else:
        path.write_bytes(
            {"cut": data[:position], "empty": b"", "longer": data + bytes(13), "zeros": bytes(len(data))}[damage]
        )


@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex"])
def test_a_corrupt_index_never_gives_a_reader_the_wrong_batch(
    original: Path, batches: list[bytes], tmp_path: Path, pattern: str
) -> None:
    """After a clean stop nothing looks at the indexes before a reader does."""
    name = min(path.name for path in original.glob(pattern))
    for position, directory in damaged(original, tmp_path, name):
        data = bytearray((directory / name).read_bytes())
        data[position] ^= 0xFF
        (directory / name).write_bytes(data)
        log = open_log(directory, clean_shutdown=True, **CONFIG)
        log.update_high_watermark(log.log_end_offset)
        for offset in range(log.log_end_offset):
            file_slice = log.read(offset, 1, log.high_watermark)
            assert file_slice is not None
            with open(file_slice.path, "rb") as file:
                file.seek(file_slice.position)
                assert file.read(file_slice.size) == batches[offset // 2]


def test_a_block_of_another_segment_is_not_read(
    original: Path, batches: list[bytes], tmp_path: Path, same_boot: bool
) -> None:
    """Bytes of one segment in the middle of another are not taken for its own."""
    name = active_segment(original)
    earlier = (original / min(path.name for path in original.glob("*.log"))).read_bytes()
    for position, directory in damaged(original, tmp_path, name):
        data = bytearray((directory / name).read_bytes())
        data[position : position + 128] = earlier[:128][: len(data) - position]
        (directory / name).write_bytes(data)
        read = list(read_batches(recover(directory, same_boot)))
        assert kept_before(original, batches, position) <= len(read)
        assert read == batches[: len(read)]
