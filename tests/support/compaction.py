"""Compacting a log in a test, step by step in one thread."""

from __future__ import annotations

from collections.abc import Iterator

from rayka.storage.cleaner.cleaner import Cleaner
from rayka.storage.cleaner.dirtiness import aborted_transactions, measure, plan_of
from rayka.storage.cleaner.plan import CleanerLimits, RoundEnd
from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from rayka.storage.log.replacement import CleanedSegment

LIMITS = CleanerLimits(dedupe_buffer_bytes=1 << 20, secret=(1, 2))


def compact(
    log: Log, now_ms: int, files: RealFiles, *, cleaned_offset: int | None = None, limits: CleanerLimits = LIMITS
) -> RoundEnd | None:
    """One whole round of cleaning, however dirty the log is; None if nothing can be cleaned."""
    return [None, *rounds(log, now_ms, files, cleaned_offset=cleaned_offset, limits=limits)][-1]


def rounds(
    log: Log, now_ms: int, files: RealFiles, *, cleaned_offset: int | None = None, limits: CleanerLimits = LIMITS
) -> Iterator[RoundEnd | None]:
    """As `compact`, with a stop after each change of what readers see."""
    dirtiness = measure(log, cleaned_offset, now_ms)
    if not dirtiness.dirty_bytes:
        return
    plan = plan_of(dirtiness, aborted_transactions(dirtiness), now_ms)
    for step in Cleaner(files, plan, limits, lambda _: None).clean():
        if isinstance(step, CleanedSegment):
            yield from _replace(log, step, now_ms, files)
        else:
            yield step


def _replace(log: Log, cleaned: CleanedSegment, now_ms: int, files: RealFiles) -> Iterator[None]:
    replacement = log.begin_replacement(cleaned)
    assert replacement is not None
    replacement.prepare()
    deletion = log.replace_segments(replacement, now_ms)
    yield None
    removal = deletion.rename(files)
    replacement.finish()
    yield None
    log.end_replacement(replacement)
    yield None
    removal.run(files)
