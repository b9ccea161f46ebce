"""`rayka log dump`: whole files pass, and every kind of damage is found, placed and told by the exit code."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from rayka.cli.main import main
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, read_header
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch

SEGMENT = "00000000000000000100.log"
RECORDS_PER_BATCH = 3


def _batches(count: int = 6) -> list[bytes]:
    codecs = list(Codec)
    return [
        bytes(
            build_batch(
                [Record(0, 1_000 + 10 * number + i, b"k%d" % i, b"v" * 20) for i in range(RECORDS_PER_BATCH)],
                base_offset=100 + RECORDS_PER_BATCH * number,
                codec=codecs[number % len(codecs)],
                producer_id=7 if number % 2 else -1,
                producer_epoch=0 if number % 2 else -1,
                base_sequence=number if number % 2 else -1,
            )
        )
        for number in range(count)
    ]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition directory with one segment, both indexes (preallocated, as Kafka leaves them) and a snapshot."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    batches = _batches()
    (directory / SEGMENT).write_bytes(b"".join(batches))
    offsets, times, position = b"", b"", 0
    for batch in batches:
        header = read_header(batch)
        if position:
            offsets += struct.pack(">ii", header.last_offset - 100, position)
            times += struct.pack(">qi", header.max_timestamp, header.last_offset - 100)
        position += len(batch)
    (directory / SEGMENT.replace(".log", ".index")).write_bytes(offsets.ljust(4096, b"\0"))
    (directory / SEGMENT.replace(".log", ".timeindex")).write_bytes(times.ljust(1200, b"\0"))
    (directory / SEGMENT.replace(".log", ".txnindex")).write_bytes(struct.pack(">hqqqq", 0, 7, 101, 104, 105))
    producers = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 0, 5, 117, 2, 1_052, -1, -1)
    snapshot = struct.pack(">hI", 1, crc32c(producers)) + producers
    (directory / "00000000000000000118.snapshot").write_bytes(snapshot)
    return directory


def _dump(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, object]]]:
    code = main(["log", "dump", str(path), "--json", *options])
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in (captured.out + captured.err).splitlines()]


def _damage(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    return [line for line in lines if line["kind"] == "damage"]


def test_whole_files_pass(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = _dump(partition.parent, capsys)
    assert code == 0
    batches = [line for line in lines if line["kind"] == "batch"]
    assert [batch["base_offset"] for batch in batches] == [100, 103, 106, 109, 112, 115]
    assert [batch["codec"] for batch in batches] == ["none", "gzip", "snappy", "lz4", "zstd", "none"]
    files = {Path(str(line["path"])).suffix: line for line in lines if line["kind"] == "file"}
    assert [files[suffix].get("entries") for suffix in (".index", ".timeindex", ".txnindex")] == [5, 5, 1]
    assert files[".snapshot"]["producers"] == 1
    assert lines[-1]["damaged"] == 0
    assert (lines[-1]["batches"], lines[-1]["records"]) == (6, 18)


def test_text_names_what_it_sees(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", str(partition / SEGMENT), "--records"]) == 0
    out = capsys.readouterr().out
    assert "offsets 100..102" in out
    assert "1970-01-01T00:00:01.002Z (CREATE_TIME)" in out
    assert '"key": "k1"' in out
    size = (partition / SEGMENT).stat().st_size
    assert out.endswith(f"1 segments, 6 batches, 18 records, {size} bytes; no damage\n")


def test_every_torn_end_is_found_where_it_begins(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = partition / SEGMENT
    whole = segment.read_bytes()
    ends = [0]
    for batch in _batches():
        ends.append(ends[-1] + len(batch))
    for size in range(1, len(whole)):
        segment.write_bytes(whole[:size])
        code, lines = _dump(segment, capsys, "--quiet")
        torn = [line["position"] for line in _damage(lines) if str(line["path"]).endswith(".log")]
        assert (code, torn) == ((1, [max(end for end in ends if end <= size)]) if size not in ends else (1, [])), size


def test_every_flipped_byte_under_the_crc_is_found(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = partition / SEGMENT
    batches = _batches()
    whole = b"".join(batches)
    starts = [sum(len(batch) for batch in batches[:number]) for number in range(len(batches))]
    for position in range(len(whole)):
        start = max(start for start in starts if start <= position)
        if position - start < 8 or 12 <= position - start < 16:  # base offset and epoch: stamped by the broker
            continue
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        segment.write_bytes(damaged)
        code, lines = _dump(segment, capsys, "--quiet")
        assert code == 1
        assert [line["position"] for line in _damage(lines) if str(line["path"]).endswith(".log")] == [start]


@pytest.mark.parametrize(
    ("suffix", "slot_bytes", "entry", "reason"),
    [
        (".index", 8, struct.pack(">ii", 8, 3), "where no batch begins"),
        (".index", 8, struct.pack(">ii", 8, 1_000_000), "the segment has"),
        (".index", 8, struct.pack(">ii", 2, 128), "lies before it"),
        (".timeindex", 12, struct.pack(">qi", 1_001, 8), "but a batch has"),
        (".timeindex", 12, struct.pack(">qi", 9_999, 99), "is not in the segment"),
    ],
)
def test_wrong_index_entries_are_found(
    partition: Path,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
    slot_bytes: int,
    entry: bytes,
    reason: str,
) -> None:
    index = partition / SEGMENT.replace(".log", suffix)
    if reason == "lies before it":
        entry = struct.pack(">ii", 2, len(_batches()[0]) + len(_batches()[1]))
    data = index.read_bytes()
    index.write_bytes(data[:slot_bytes] + entry + data[2 * slot_bytes :])
    code, lines = _dump(partition, capsys, "--quiet")
    assert code == 1
    assert any(reason in str(line["message"]) and line["position"] == slot_bytes for line in _damage(lines))


def test_a_torn_index_is_found(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        index = partition / SEGMENT.replace(".log", suffix)
        index.write_bytes(index.read_bytes() + b"\1\2\3")
        code, lines = _dump(partition, capsys, "--quiet")
        assert code == 1
        assert any(str(index) == line["path"] for line in _damage(lines))


def test_every_flipped_byte_of_a_snapshot_is_found(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = partition / "00000000000000000118.snapshot"
    whole = snapshot.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        snapshot.write_bytes(damaged)
        code, lines = _dump(partition, capsys, "--quiet")
        assert code == 1, position
        assert [line["path"] for line in _damage(lines)] == [str(snapshot)]


def test_a_batch_whose_records_are_not_as_the_format_says(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = bytearray(_batches(1)[0])
    batch[RECORD_BATCH_OVERHEAD] ^= 0x02
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    (partition / SEGMENT).write_bytes(batch)
    code, lines = _dump(partition / SEGMENT, capsys, "--quiet", "--records")
    assert code == 1
    assert any("offset 100" in str(line["message"]) for line in _damage(lines))


def test_nothing_to_dump_is_not_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", str(tmp_path / "none")]) == 3
    assert main(["log", "dump", str(tmp_path)]) == 3
    assert capsys.readouterr().err.count("\n") == 2
