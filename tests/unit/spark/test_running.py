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
    with run_batch(RunningBatch("s", RANGES)):
        assert stream_id() == "s"
        assert json.loads(batch_offsets()) == OFFSETS
        assert batch_of(None, 7) == ("s", 7, OFFSETS)
    assert stream_id() is batch_offsets() is None


def test_a_batch_that_comes_again_with_other_offsets_is_refused() -> None:
    with run_batch(RunningBatch("s", RANGES)):
        batch = batch_of(None, 7)
    batch.require_same(json.loads(json.dumps(OFFSETS)), "/data/t")
    both = r"/data/t has batch 7 of stream s .*\[5, 8\].* but the checkpoint .*\[5, 9\]"
    with pytest.raises(RaykaError, match=both) as refused:
        batch.require_same({"clicks": {"0": [5, 8], "1": [0, 0]}, "pages": {"0": [1, 4]}}, "/data/t")
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "left",
    [
        (OffsetRange("clicks", 0, 7, 9), OffsetRange("clicks", 1, 3, 4)),
        (OffsetRange("clicks", 0, 12, 12), OffsetRange("clicks", 1, 2, 4)),
        (OffsetRange("clicks", 0, 0, 0), OffsetRange("clicks", 1, 2, 4)),
        (OffsetRange("clicks", 1, 2, 4),),
    ],
    ids=["retention has taken some", "retention has taken all", "the topic was created again", "it was deleted"],
)
def test_a_batch_of_which_records_were_lost_since_it_was_written_is_the_same(left: tuple[OffsetRange, ...]) -> None:
    """With `on_data_loss="skip"` it comes again without them."""
    with run_batch(RunningBatch("s", left)):
        batch_of(None, 7).require_same({"clicks": {"0": [5, 9], "1": [2, 4]}}, "/data/t")


@pytest.mark.parametrize(
    "left",
    [
        (OffsetRange("clicks", 0, 7, 12),),
        (OffsetRange("clicks", 0, 4, 9),),
        (OffsetRange("clicks", 0, 0, 3),),
        (OffsetRange("clicks", 0, 5, 5),),
        (OffsetRange("clicks", 0, 5, 9), OffsetRange("clicks", 1, 0, 1)),
        (OffsetRange("clicks", 0, 5, 9), OffsetRange("pages", 0, 0, 1)),
    ],
)
def test_a_batch_with_records_that_were_not_written_is_never_passed_over(left: tuple[OffsetRange, ...]) -> None:
    with run_batch(RunningBatch("s", left)):
        batch = batch_of(None, 7)
    for written in ({"clicks": {"0": [5, 9]}}, {}, None, [{"clicks": {"0": 9}}]):
        with pytest.raises(RaykaError, match="copied or restored"):
            batch.require_same(written, "/data/t")
