"""Tiered storage keeps and serves every record, and leaves nothing behind, whatever fails and whenever."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.config import LogConfig
from rayka.storage.remote.remote_partition import FINISHED
from tests.support.logs import NOW_MS
from tests.support.scale import examples
from tests.support.tiered import StoreError, TieredLog

CONFIG = LogConfig(
    remote_storage_enable=True, internal_segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1,
    local_retention_bytes=1_500,
)  # fmt: skip
SEGMENT_ID = re.compile(r"-([0-9a-f]{32})\.[a-z-]+(\.part)?$")
FAULTS = st.tuples(st.integers(-1, 12), st.booleans())
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 25), FAULTS),
    st.tuples(st.sampled_from(["copy", "retain", "delete_old", "crash", "reload"]), st.just(0), FAULTS),
    st.tuples(st.just("delete_records"), st.integers(0, 60), FAULTS),
)


def _carry_out(tiered: TieredLog, name: str, number: int) -> None:
    log = tiered.log
    match name:
        case "append":
            tiered.append(number)
        case "delete_old":
            log.delete_old_segments(NOW_MS)
        case "delete_records":
            log.delete_records(min(log.log_start_offset + number, log.high_watermark))
            tiered.checkpoint()
        case _:
            getattr(tiered, name)()


def _check(tiered: TieredLog, end_offset: int) -> None:
    log = tiered.log
    assert log.log_end_offset == end_offset
    assert list(tiered.read_all()) == [(offset, offset) for offset in range(log.log_start_offset, end_offset)]


def _segments_in_store(tiered: TieredLog) -> set[str]:
    return {SEGMENT_ID.search(name).group(1) for name in tiered.store.list("")}  # type: ignore[union-attr]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_every_record_is_served_and_no_object_is_left_behind(history: list[tuple[str, int, tuple[int, bool]]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        tiered = TieredLog(Path(path), CONFIG)
        tiered.append(40)
        log_start_offset = 0
        for name, number, (fail_at, is_late) in history:
            end_offset = tiered.log.log_end_offset + (number if name == "append" else 0)
            tiered.store.fail_at, tiered.store.is_late = fail_at, is_late
            try:
                _carry_out(tiered, name, number)
            except StoreError:
                tiered.reload()
            tiered.store.fail_at = -1
            _check(tiered, end_offset)
            assert tiered.log.log_start_offset >= log_start_offset
            log_start_offset = tiered.log.log_start_offset
            assert _segments_in_store(tiered) <= {segment.segment_id.hex for segment in tiered.remote.segments}
        tiered.retain()
        assert _segments_in_store(tiered) == {each.segment_id.hex for each in tiered.remote.segments}
        assert {segment.state for segment in tiered.remote.segments} <= {FINISHED}
        tiered.store.fail_at = 3
        with contextlib.suppress(StoreError):
            tiered.delete()
        tiered.store.fail_at = -1
        tiered.reload()
        tiered.delete()
        assert list(tiered.store.list("")) == []
