"""Hypothesis strategies for records and batches."""

from __future__ import annotations

from hypothesis import strategies as st

from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record

SIZES = st.one_of(st.binary(max_size=20), st.integers(60, 70).map(bytes), st.integers(8180, 8200).map(bytes))
FIELDS = st.none() | SIZES
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
TIMESTAMPS = st.integers(-1, 2**42) | st.integers(1_700_000_000_000, 1_700_000_000_200)
CODECS = st.sampled_from(list(Codec))


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 0, max_size: int = 12) -> list[Record]:
    """Records of one batch, with offsets from 0 on."""
    fields = draw(
        st.lists(st.tuples(TIMESTAMPS, FIELDS, FIELDS, HEADERS), min_size=min_size, max_size=max_size),
    )
    return [Record(offset, *rest) for offset, rest in enumerate(fields)]
