"""What `parquet_sink` refuses, so that no rows are left out."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark import parquet_sink
from rayka.spark.running import RunningBatch, run_batch
from rayka.spark.sinks import ParquetSink
from rayka.storage.files import RealFiles


def test_a_frame_from_another_thread_is_refused_where_the_first_one_is_written(tmp_path: Path) -> None:
    """Such a thread knows nothing of the batch: the frame was left out, since its folder was there."""
    (tmp_path / "batch_id=7").mkdir()
    context = SimpleNamespace(getLocalProperty=lambda name: None)
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    with pytest.raises(RaykaError, match="parquet_sink is for streams, in the thread") as refused:
        parquet_sink(tmp_path)(frame, 7)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


class Frame:
    """A DataFrame whose writer takes a path as Hadoop does: as a URI in which nothing is escaped."""

    def __init__(self) -> None:
        self.write = self

    def parquet(self, text: str) -> None:
        """Write one file."""
        folder = Path(text.removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_bytes(b"rows")


def test_a_path_may_have_any_characters(tmp_path: Path) -> None:
    directory, frame = tmp_path / "Données 100% #1", Frame()
    sink, rows = parquet_sink(directory), cast(Any, frame)
    with run_batch(RunningBatch("s", (OffsetRange("clicks", 0, 0, 5),))):
        sink(rows, 0)
    assert (directory / "batch_id=0" / "part-0.parquet").read_bytes() == b"rows"
    assert os.listdir(tmp_path) == [directory.name]


def test_a_uri_is_refused() -> None:
    with pytest.raises(RaykaError, match="is a URI") as refused:
        parquet_sink("s3://bucket/clicks")
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def no_links(source: object, target: object) -> None:
    raise PermissionError("links are not supported")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_path_belongs_to_the_stream_that_takes_it(
    tmp_path: Path, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    sink = ParquetSink(tmp_path / "pages", None)
    sink._require_owner("s")
    sink._require_owner("s")
    with pytest.raises(RaykaError, match=r"another stream \(s, the checkpoint is of other\)"):
        sink._require_owner("other")
    assert os.listdir(tmp_path / "pages") == ["_stream.json"]


def test_a_path_that_two_streams_claim_at_once_belongs_to_one(tmp_path: Path) -> None:
    """The other one comes after this one has seen that the path is free."""
    sink, other = ParquetSink(tmp_path, None), ParquetSink(tmp_path, None)

    class Files(RealFiles):
        def write_file(self, path: str, data: Any, *, sync: bool = False) -> None:
            other._require_owner("other")
            super().write_file(path, data, sync=sync)

    sink._files = Files()
    with pytest.raises(RaykaError, match=r"another stream \(other, the checkpoint is of s\)"):
        sink._require_owner("s")
    other._require_owner("other")
