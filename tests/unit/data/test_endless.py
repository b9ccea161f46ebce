"""What `iter_topic` refuses."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray.data")

from rayka.data.endless import BlockReader
from rayka.errors import ErrorCode, RaykaError


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_blocks_of_no_bytes_are_refused(max_bytes: int) -> None:
    """No record would ever be read, and the iterator would wait for one."""
    reader: Any = None
    with pytest.raises(RaykaError, match="max_bytes_per_block must be 1 or more") as refused:
        BlockReader(reader, ("value",), max_bytes)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
