"""How `./check` hands the tests that start brokers to its workers.

Tests that share a broker run one after the other on one worker; every other test is handed out by itself. The
longest come first, so that all workers end at the same time. A test that measures time, memory or processor time is
marked `alone`: it runs afterwards, with the machine to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

LONGEST_FIRST = (
    "tests/spark/",
    "tests/ray_data/",
    "tests/faults/",
    "tests/examples/",
    "tests/integration/",
    "tests/clients/",
)
WITH_SPARK = ("tests/spark/", "tests/examples/test_examples.py")
"""One worker for all that start Spark, which takes much memory; the tests of the folder share a broker and a Spark."""
NOTHING_SHARED = (
    "tests/examples/test_documents.py",
    "tests/faults/test_failing_disk.py",
    "tests/faults/test_full_disk.py",
    "tests/faults/test_histories.py",
    "tests/integration/test_supervisor.py",
)
"""Files of whose tests each starts what it needs."""


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests, and name for each the group that stays on one worker (`--dist loadgroup`)."""
    items.sort(key=lambda item: _place(item.nodeid, LONGEST_FIRST))
    for item in items:
        if (group := group_of(item.nodeid)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def group_of(nodeid: str) -> str | None:
    """The tests with which a test shares a broker: those of its file or with Spark; None if it shares none."""
    if nodeid.startswith(WITH_SPARK):
        return "spark"
    if nodeid.startswith(NOTHING_SHARED):
        return None
    return nodeid.partition("::")[0]


def _place(nodeid: str, order: Sequence[str]) -> int:
    return next((place for place, start in enumerate(order) if nodeid.startswith(start)), len(order))
