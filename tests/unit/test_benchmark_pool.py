"""The ideal that a pool of actors is compared with."""

from __future__ import annotations

import pytest

from benchmarks.pool import ideal_s


@pytest.mark.parametrize(
    ("kills_s", "tasks", "actors", "ideal"),
    [
        ((), 100, 16, 0.07),
        ((), 96, 16, 0.06),
        ((), 1, 16, 0.01),
        ((0.023, 0.047), 100, 16, 0.07),  # 2 and 4 tasks of the killed ones, 14 times 7 of the others
        ((0.0, 0.0), 98, 16, 0.07),
        ((0.0, 0.0), 99, 16, 0.08),
        ((0.005,), 4, 2, 0.04),  # a task that is cut short is done again
        ((0.01,), 4, 2, 0.03),
    ],
)
def test_the_ideal_is_the_best_schedule_of_whole_tasks(
    kills_s: tuple[float, ...], tasks: int, actors: int, ideal: float
) -> None:
    assert ideal_s(kills_s, tasks, actors, 0.01) == pytest.approx(ideal)
