"""Whether a batch was committed, from the offsets of its partitions."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rayka.client.group.coordinator import OffsetAndMetadata
from rayka.errors import ErrorCode, RaykaError
from rayka.spark.transactions import was_committed
from rayka.types import TopicPartition

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def offsets(batch_id: int, first: int, second: int = 7) -> dict[TopicPartition, OffsetAndMetadata]:
    metadata = f'{{"batch_id": {batch_id}}}'
    return {FIRST: OffsetAndMetadata(first, metadata), SECOND: OffsetAndMetadata(second, metadata)}


BATCH_4 = offsets(4, 10)


def test_a_batch_is_recognised_by_the_number_in_its_offsets() -> None:
    assert was_committed(BATCH_4, BATCH_4, "g", 4)
    assert was_committed({FIRST: BATCH_4[FIRST]}, BATCH_4, "g", 4, empty={SECOND})
    assert not was_committed(BATCH_4, offsets(5, 20), "g", 5)
    assert not was_committed({}, offsets(0, 3), "g", 0)


@pytest.mark.parametrize("planned", [offsets(4, 12), offsets(4, 10, 8), offsets(3, 10)])
def test_a_batch_of_a_checkpoint_that_was_copied_or_restored_is_refused(planned) -> None:
    """It would be passed over, and the records that it has beyond the committed ones with it."""
    number = int(planned[FIRST].metadata[-2])
    both = f"batch 4 up to clicks-0: 10, .* has batch {number} up to clicks-0: 1"
    with pytest.raises(RaykaError, match=both) as refused:
        was_committed(BATCH_4, planned, "g", number)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_records_of_a_partition_that_the_batch_did_not_have_are_never_passed_over() -> None:
    """A checkpoint that was restored has planned its number again, now that there is one more partition."""
    with pytest.raises(RaykaError, match="copied or restored"):
        was_committed({FIRST: BATCH_4[FIRST]}, BATCH_4, "g", 4)


def test_a_batch_of_which_retention_has_taken_a_partition_since_its_commit_is_the_same() -> None:
    """With `on_data_loss="skip"` it comes again with nothing of that partition, from where its log now begins."""
    assert was_committed(BATCH_4, offsets(4, 12), "g", 4, empty={FIRST})
    for planned, empty in ((offsets(4, 12, 8), {FIRST}), (offsets(4, 5), {FIRST}), (offsets(4, 12), {SECOND})):
        with pytest.raises(RaykaError, match="copied or restored"):
            was_committed(BATCH_4, planned, "g", 4, empty)


@pytest.mark.parametrize("metadata", ["", "text", "{}", "[]", "null"])
def test_offsets_that_others_have_committed_are_no_answer(metadata: str) -> None:
    """Without the number nobody knows whether the batch is there: neither is it passed over nor written twice."""
    foreign = {FIRST: OffsetAndMetadata(0, metadata)}
    with pytest.raises(RaykaError, match="delete the group") as refused:
        was_committed(foreign, BATCH_4, "g", 4)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert was_committed({**BATCH_4, **foreign}, BATCH_4, "g", 4)
