"""What `parquet_sink` refuses, so that no rows are left out."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import parquet_sink
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
