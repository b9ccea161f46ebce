"""What a sink is told of its batch, and how it recognises one that comes again."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

import rayka.spark.running
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark import batch_offsets, stream_id
from rayka.spark.running import BatchIdentity, RunningBatch, batch_of, frames_of, run_batch

RANGES = (OffsetRange("clicks", 0, 5, 9), OffsetRange("clicks", 1, 0, 0), OffsetRange("pages", 0, 1, 4))
OFFSETS = {"clicks": {"0": [5, 9], "1": [0, 0]}, "pages": {"0": [1, 4]}}


def test_a_sink_knows_what_its_batch_reads() -> None:
    with run_batch(RunningBatch("s", RANGES)):
        assert stream_id() == "s"
        assert json.loads(batch_offsets()) == OFFSETS
        assert batch_of(None, 7) == BatchIdentity("s", 7, OFFSETS)
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
def test_a_written_batch_is_recognised_after_records_were_lost(left: tuple[OffsetRange, ...]) -> None:
    """With `on_data_loss="skip"` it comes again without them."""
    with run_batch(RunningBatch("s", left)):
        batch_of(None, 7).require_same({"clicks": {"0": [5, 9], "1": [2, 4]}}, "/data/t")


FIRST, AGAIN = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.parametrize("start_offset", [0, 3])
def test_a_written_batch_is_recognised_wherever_the_topic_that_was_created_again_begins(start_offset: int) -> None:
    with run_batch(RunningBatch("s", (OffsetRange("clicks", 0, 0, 9, FIRST),))):
        _, _, offsets, topic_ids = batch_of(None, 0)
    with run_batch(RunningBatch("s", (OffsetRange("clicks", 0, start_offset, start_offset, AGAIN),))):
        batch_of(None, 0).require_same(offsets, "/data/t", topic_ids)


def test_a_batch_is_recognised_that_an_earlier_version_has_written_without_topic_ids() -> None:
    with run_batch(RunningBatch("s", (OffsetRange("clicks", 0, 0, 9, FIRST),))):
        batch_of(None, 0).require_same({"clicks": {"0": [0, 9]}}, "/data/t")


@pytest.mark.parametrize(("end_offset", "topic_id"), [(0, FIRST), (5, FIRST), (9, AGAIN)])
def test_a_batch_with_other_records_of_the_topic_or_its_namesake_is_refused(
    end_offset: int, topic_id: uuid.UUID
) -> None:
    with run_batch(RunningBatch("s", (OffsetRange("clicks", 0, 0, end_offset, topic_id),))):
        batch = batch_of(None, 0)
    with pytest.raises(RaykaError, match="copied or restored"):
        batch.require_same({"clicks": {"0": [0, 9]}}, "/data/t", {"clicks": str(FIRST)})


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
def test_a_batch_with_records_that_were_not_written_is_never_skipped(left: tuple[OffsetRange, ...]) -> None:
    with run_batch(RunningBatch("s", left)):
        batch = batch_of(None, 7)
    for written in ({"clicks": {"0": [5, 9]}}, {}, None, [{"clicks": {"0": 9}}]):
        with pytest.raises(RaykaError, match="copied or restored"):
            batch.require_same(written, "/data/t")


class Queries(dict):
    """What a DataFrame of Structured Streaming knows of the queries that run, as Java shows it: runs by query."""

    sparkSession = property(lambda self: self)  # noqa: N815
    _jvm = property(lambda self: SimpleNamespace(java=SimpleNamespace(util=SimpleNamespace(UUID=self))))
    _jsparkSession = property(lambda self: self)  # noqa: N815

    def fromString(self, query_id: str) -> str:  # noqa: N802
        return query_id

    def sharedState(self) -> Queries:  # noqa: N802
        return self

    def activeStreamingQueries(self) -> Queries:  # noqa: N802
        return self

    def get(self, query_id: str) -> SimpleNamespace | None:
        return SimpleNamespace(runId=lambda: self[query_id]) if query_id in self else None


def test_frames_are_counted_for_each_batch_of_each_run_of_a_query() -> None:
    running = Queries(first="run 1", second="run 1")

    def write(query_id: str, batch_id: int) -> int:
        with frames_of(running, BatchIdentity(query_id, batch_id, {})).next("t") as number:
            return number

    assert [write("first", 0), write("first", 0), write("second", 0), write("first", 0)] == [0, 1, 0, 2]
    assert write("first", 1) == 0
    running["second"] = "run 2"
    assert write("second", 0) == 0


def test_nothing_is_kept_of_queries_that_have_ended() -> None:
    running = Queries(ended="run 1")
    with frames_of(running, BatchIdentity("ended", 0, {})).next("t"):
        pass
    del running["ended"]
    running["later"] = "run 1"
    frames_of(running, BatchIdentity("later", 0, {}))
    assert "ended" not in rayka.spark.running._frames
