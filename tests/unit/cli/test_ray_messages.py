"""Which line is said of a paragraph of Ray's."""

from __future__ import annotations

import pytest

from rayka.cli.ray_messages import short

DEATH = (
    "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
    "check the logs for the dead worker. Lease ID: 01 Worker IP address: 192.0.2.2 Worker PID: 22159 "
    "Worker exit type: SYSTEM_ERROR"
)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            DEATH,
            "Ray: A worker died or was killed while executing a task by an unexpected system error (process 22159)",
        ),
        ("The node is low on disk.\nFree some.", "Ray: The node is low on disk"),
        ("", "Ray: "),
    ],
)
def test_the_first_sentence_and_the_process(message: str, line: str) -> None:
    assert short(message) == line
