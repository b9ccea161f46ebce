"""The ways in which clients encode and make records: plain Python, and C code where this checkout has it compiled."""

from __future__ import annotations

import pytest

from rayka.client.compiled import Compiled
from rayka.client.consumer import decoding, located
from rayka.client.native import native_records
from rayka.client.producer import filling

PLAIN, NATIVE, LOCATED = "plain", "native", "located"
WAYS = [PLAIN] if native_records is None else [PLAIN, NATIVE]
WAYS_TO_DECODE = [PLAIN, LOCATED] if native_records is None else [PLAIN, LOCATED, NATIVE]


def fill_by(way: str, patch: pytest.MonkeyPatch) -> None:
    """Producers fill batches, and encode columns, in this way."""
    from rayka.client.producer import row_batches  # only now: it needs numpy

    patch.setattr(filling, "is_native", way == NATIVE)
    patch.setattr(row_batches, "is_native", way == NATIVE)


def decode_by(way: str, patch: pytest.MonkeyPatch) -> None:
    """Consumers decode in this way. Records that were located are made by plain Python, or by C code."""
    locating = Compiled("no such module" if way == PLAIN else located.__name__, "locate_batches", lambda _: None)
    if way != PLAIN:
        locating.load()
        assert locating.function is not None
    patch.setattr(decoding, "_compiled", locating)
    patch.setattr(located, "is_native", way == NATIVE)
