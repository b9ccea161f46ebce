"""What follows the end of a supervised process, decided without a clock."""

from __future__ import annotations

from rayka.cli.daemon.restart_policy import ChildRun, GiveUp, Policy, Restart, RestartPolicy
from rayka.cli.exits import Exit

POLICY = Policy(max_failures=3, first_delay_s=0.5, max_delay_s=8.0, healthy_after_s=10.0)


def test_a_run_that_was_healthy_is_followed_by_an_immediate_restart() -> None:
    policy = RestartPolicy(POLICY)
    policy.became_ready()
    for _ in range(5):
        assert policy.after_exit(ChildRun("died", ready_s=60.0)) == Restart(0.0, "died")


def test_short_runs_in_a_row_are_followed_by_growing_delays() -> None:
    policy = RestartPolicy(POLICY)
    policy.became_ready()
    verdicts = [policy.after_exit(ChildRun("died", ready_s=1.0)) for _ in range(4)]
    assert verdicts == [Restart(0.0, "died"), Restart(0.5, "died"), Restart(1.0, "died"), Restart(2.0, "died")]
    assert policy.after_exit(ChildRun("died", ready_s=10.0)) == Restart(0.0, "died")


def test_gives_up_after_failed_starts_in_a_row() -> None:
    policy = RestartPolicy(POLICY)
    policy.became_ready()
    assert isinstance(policy.after_exit(ChildRun("one")), Restart)
    assert isinstance(policy.after_exit(ChildRun("two")), Restart)
    assert policy.after_exit(ChildRun("three")) == GiveUp(
        Exit.GAVE_UP, "giving up: 3 starts in a row failed; the last: three"
    )


def test_a_successful_start_resets_the_count_of_failed_ones() -> None:
    policy = RestartPolicy(POLICY)
    policy.after_exit(ChildRun("one"))
    policy.after_exit(ChildRun("two"))
    policy.became_ready()
    assert isinstance(policy.after_exit(ChildRun("three")), Restart)


def test_a_refusal_is_final_only_before_the_first_successful_start() -> None:
    refused = ChildRun("no.such.config", refusal="no.such.config")
    policy = RestartPolicy(POLICY)
    assert policy.after_exit(refused) == GiveUp(Exit.FAILED, "no.such.config")
    policy = RestartPolicy(POLICY)
    policy.became_ready()
    assert isinstance(policy.after_exit(refused), Restart)


def test_delays_grow_and_are_bounded() -> None:
    assert [POLICY.delay_s(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 5000)] == [0, 0, 0.5, 1, 2, 4, 8, 8, 8]
