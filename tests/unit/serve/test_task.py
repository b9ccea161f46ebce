"""What a worker does with a task that was delivered to it."""

from __future__ import annotations

import pytest

from rayka.serve.task import (
    MAX_RETRIES,
    Status,
    Verdict,
    delivery_limit,
    desired_replicas,
    retries_of,
    retry_delay_s,
    verdict,
)

RETRIES = 3


@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRY])
def test_a_task_is_run_once_and_then_retried_max_retries_times(status: Status) -> None:
    deliveries = range(1, delivery_limit(RETRIES) + 1)
    verdicts = [verdict(status, number, RETRIES, has_handler=True) for number in deliveries]
    assert verdicts == [Verdict.RUN] * (1 + RETRIES) + [Verdict.GIVE_UP] * 3


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.FAILURE, Status.REVOKED])
def test_a_task_that_has_ended_is_not_run_again(status: Status) -> None:
    assert verdict(status, 1, RETRIES, has_handler=True) is Verdict.DROP
    assert verdict(status, 2, RETRIES, has_handler=False) is Verdict.DROP


def test_a_task_without_a_handler_is_refused() -> None:
    assert verdict(Status.PENDING, 1, RETRIES, has_handler=False) is Verdict.REFUSE


def test_max_retries_is_bounded_by_the_delivery_limit_of_share_groups() -> None:
    assert [retries_of(None), retries_of(0), retries_of(5)] == [MAX_RETRIES, 0, 5]
    for wrong in (-1, MAX_RETRIES + 1):
        with pytest.raises(ValueError, match="max_retries"):
            retries_of(wrong)


def test_the_delay_before_a_retry_doubles_up_to_a_minute() -> None:
    assert [retry_delay_s(number) for number in (1, 2, 3, 6, 7, 100)] == [1, 2, 4, 32, 60, 60]


def test_replicas_scale_with_the_workload_and_down_to_none() -> None:
    assert desired_replicas(0, 0, 2) == 0
    assert desired_replicas(1, 0, 2) == 1
    assert desired_replicas(10, 1, 2) == 5
    assert desired_replicas(0, 5, 2) == 0
