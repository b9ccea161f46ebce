"""A task of a transaction writes once, whatever Spark repeats."""

from __future__ import annotations

from rayka.client.settings import OpenTransaction
from rayka.spark.claims import WriteClaims

FIRST, SECOND = OpenTransaction("t", 5, 0), OpenTransaction("t", 5, 1)


def test_a_task_writes_once_in_a_transaction() -> None:
    claims = WriteClaims()
    claims.begin(FIRST)
    assert [claims.claim(FIRST, task) for task in (0, 1, 0)] == [True, True, False]


def test_a_task_of_an_earlier_transaction_writes_no_more() -> None:
    claims = WriteClaims()
    claims.begin(FIRST)
    claims.begin(SECOND)
    assert not claims.claim(FIRST, 0)
    assert claims.claim(SECOND, 0)


def test_a_restarted_actor_refuses_claims_until_the_next_transaction() -> None:
    """It does not know any more who has written."""
    claims = WriteClaims()
    assert not claims.claim(FIRST, 0)
    claims.begin(SECOND)
    assert claims.claim(SECOND, 0)
