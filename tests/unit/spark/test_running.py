"""What a sink is told of its batch, and how it recognises one that comes again."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark")

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark import batch_offsets, stream_id
from rayka.spark.running import RunningBatch, batch_of, run_batch

RANGES = (OffsetRange("clicks", 0, 5, 9), OffsetRange("clicks", 1, 0, 0), OffsetRange("pages", 0, 1, 4))
OFFSETS = {"clicks": {"0": [5, 9], "1": [0, 0]}, "pages": {"0": [1, 4]}}


def test_a_sink_knows_what_its_batch_reads() -> None:
    with run_batch(RunningBatch("s", RANGES, {})):
        assert stream_id() == "s"
        assert json.loads(batch_offsets()) == OFFSETS
        assert batch_of(None, 7) == ("s", 7, OFFSETS)
    assert stream_id() is batch_offsets() is None


def test_a_batch_that_comes_again_with_other_offsets_is_refused() -> None:
    with run_batch(RunningBatch("s", RANGES, {})):
        batch = batch_of(None, 7)
    batch.require_same(json.loads(json.dumps(OFFSETS)), "/data/t")
    both = r"/data/t has batch 7 of stream s .*\[5, 8\].* but the checkpoint .*\[5, 9\]"
    with pytest.raises(RaykaError, match=both) as refused:
        batch.require_same({"clicks": {"0": [5, 8], "1": [0, 0]}, "pages": {"0": [1, 4]}}, "/data/t")
    assert refused.value.code is ErrorCode.INVALID_REQUEST
