"""Whether a batch was committed, from the offsets of its partitions."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rayka.client.group.coordinator import OffsetAndMetadata
from rayka.errors import ErrorCode, RaykaError
from rayka.spark.transactions import was_committed

BATCH_4 = OffsetAndMetadata(10, '{"batch_id": 4}')


def test_a_batch_is_recognised_by_the_number_in_its_offsets() -> None:
    assert was_committed([BATCH_4], "g", 4)
    assert not was_committed([BATCH_4], "g", 5)
    assert not was_committed([], "g", 0)


@pytest.mark.parametrize("metadata", ["", "text", "{}", "[]", "null"])
def test_offsets_that_others_have_committed_are_no_answer(metadata: str) -> None:
    """Without the number nobody knows whether the batch is there: neither is it passed over nor written twice."""
    foreign = OffsetAndMetadata(0, metadata)
    with pytest.raises(RaykaError, match="delete the group") as refused:
        was_committed([foreign], "g", 4)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert was_committed([foreign, BATCH_4], "g", 4)
