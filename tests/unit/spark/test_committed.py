"""Whether a batch was committed, from the offsets of its partitions."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rayka.client.group.coordinator import OffsetAndMetadata
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark.committed import PlannedOffsets
from rayka.types import TopicPartition

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def planned(batch_id: int, first: int, second: int = 7, *, empty: tuple[TopicPartition, ...] = ()) -> PlannedOffsets:
    ends = {FIRST: first, SECOND: second}
    ranges = [OffsetRange(*each, end - (each not in empty), end) for each, end in ends.items()]
    return PlannedOffsets("g", batch_id, tuple(ranges))


BATCH_4 = planned(4, 10)
COMMITTED = BATCH_4.offsets


def test_a_batch_is_recognised_by_the_number_in_its_offsets() -> None:
    assert BATCH_4.are_committed(COMMITTED)
    assert planned(4, 10, empty=(SECOND,)).are_committed({FIRST: COMMITTED[FIRST]})
    assert not planned(5, 20).are_committed(COMMITTED)
    assert not planned(0, 3).are_committed({})


@pytest.mark.parametrize("copied", [planned(4, 12), planned(4, 10, 8), planned(3, 10)])
def test_a_batch_of_a_checkpoint_that_was_copied_or_restored_is_refused(copied: PlannedOffsets) -> None:
    """It would be passed over, and the records that it has beyond the committed ones with it."""
    both = f"batch 4 up to clicks-0: 10, .* has batch {copied.batch_id} up to clicks-0: 1"
    with pytest.raises(RaykaError, match=both) as refused:
        copied.are_committed(COMMITTED)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_batch_that_was_planned_again_with_a_new_partition_is_refused() -> None:
    """A checkpoint that was restored has planned its number again, now that there is one more partition."""
    with pytest.raises(RaykaError, match="copied or restored"):
        BATCH_4.are_committed({FIRST: COMMITTED[FIRST]})


def test_a_committed_batch_is_recognised_after_retention_emptied_a_partition() -> None:
    """With `on_data_loss="skip"` it comes again with nothing of that partition, from where its log now begins."""
    assert planned(4, 12, empty=(FIRST,)).are_committed(COMMITTED)
    others = planned(4, 12, 8, empty=(FIRST,)), planned(4, 5, empty=(FIRST,)), planned(4, 12, empty=(SECOND,))
    for other in others:
        with pytest.raises(RaykaError, match="copied or restored"):
            other.are_committed(COMMITTED)


@pytest.mark.parametrize("metadata", ["", "text", "{}", "[]", "null"])
def test_offsets_committed_by_other_programs_are_refused(metadata: str) -> None:
    """Without the number nobody knows whether the batch is there: neither is it passed over nor written twice."""
    foreign = {FIRST: OffsetAndMetadata(0, metadata)}
    with pytest.raises(RaykaError, match="delete the group") as refused:
        BATCH_4.are_committed(foreign)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert BATCH_4.are_committed({**COMMITTED, **foreign})
