"""How `./check` hands the tests that start brokers to its workers.

Tests that share a broker run one after the other on one worker; every other test is handed out by itself. The
longest come first, so that all workers end at the same time. A test that measures time, memory or processor time is
marked `alone`: it runs afterwards, with the machine to itself.

xdist's own groups travel in the ids of the tests. From pytest 9.2 on they are lost there, and every worker starts every
broker (pytest-xdist issue 1386). Here the scheduler knows the groups by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST = (
    "tests/spark/",
    "tests/clients/",
    "tests/integration/test_python_",
    "tests/integration/test_cluster_yaml.py",
    "tests/integration/test_supervisor.py",
    "tests/faults/",
    "tests/ray_data/",
    "tests/examples/test_documents.py",
    "tests/integration/",
    "tests/examples/",
)
SHARED = {
    "Spark": ("tests/spark/", "tests/examples/test_spark_examples.py"),
    "clients": ("tests/clients/",),
    "Python on Ray": (
        "tests/integration/test_python_",
        "tests/integration/test_queue.py",
        "tests/integration/test_record_pools.py",
    ),
    "commands": (
        "tests/integration/test_groups_cli.py",
        "tests/integration/test_share_groups_cli.py",
        "tests/integration/test_transactions_cli.py",
    ),
}
"""What several files share: see the conftest.py of their folders. One worker has all that start Spark, which takes much
memory."""
NOTHING_SHARED = (
    "tests/examples/",
    "tests/faults/test_failing_disk.py",
    "tests/faults/test_full_disk.py",
    "tests/faults/test_histories.py",
)
"""Files of whose tests each starts what it needs."""


class GroupScheduling(LoadScopeScheduling):
    """Keeps the tests of a group on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests: those that take longest first."""
    items.sort(key=lambda item: _place(item.nodeid, LONGEST_FIRST))


def group_of(nodeid: str) -> str | None:
    """The tests with which a test shares a broker: those of its file, or of several; None if there are none."""
    for group, places in SHARED.items():
        if nodeid.startswith(places):
            return group
    if nodeid.startswith(NOTHING_SHARED):
        return None
    return nodeid.partition("::")[0]


def _place(nodeid: str, order: Sequence[str]) -> int:
    return next((place for place, start in enumerate(order) if nodeid.startswith(start)), len(order))
