"""What `parquet_sink` refuses, so that no rows are left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import parquet_sink


def test_a_frame_from_another_thread_is_refused_where_the_first_one_is_written(tmp_path: Path) -> None:
    """Such a thread knows nothing of the batch: the frame was left out, since its folder was there."""
    (tmp_path / "batch_id=7").mkdir()
    context = SimpleNamespace(getLocalProperty=lambda name: None)
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    with pytest.raises(RaykaError, match="parquet_sink is for streams, in the thread") as refused:
        parquet_sink(tmp_path)(frame, 7)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
