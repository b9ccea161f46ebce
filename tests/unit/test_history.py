"""The history checker finds each kind of broken promise, and accepts a history in which everything was kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.history import (
    Commit,
    CommittedOffset,
    Fetch,
    History,
    Joined,
    LogOffsets,
    Outcome,
    Produce,
    Recovery,
    violations,
)

P = ("t", 0)
OTHER = ("t", 1)
DONE, REFUSED, IN_DOUBT = Outcome


def sent(number: int, offset: int = -1, outcome: Outcome = DONE, **more: object) -> Produce:
    return Produce("w", number, P, b"%d" % number, outcome, offset, **more)  # type: ignore[arg-type]


def log(*numbers: int) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    return {P: [(offset, b"%d" % number) for offset, number in enumerate(numbers)]}


def commit(offset: int, began_s: float, generation: int = 1, outcome: Outcome = DONE) -> Commit:
    return Commit("g", "m", generation, P, offset, outcome, began_s, began_s + 1)


def found(history: History) -> list[tuple[int, str]]:
    return [(one.invariant, one.name) for one in violations(history)]


GOOD = History(
    produces=[
        sent(0, 0),
        sent(1, 1, batch="a"),
        sent(2, 2, batch="a"),
        sent(3, outcome=IN_DOUBT),
        sent(4, outcome=IN_DOUBT),
        sent(5, outcome=REFUSED),
    ],
    fetches=[
        *(Fetch("c1", P, offset, b"%d" % offset, leader_epoch=offset // 2) for offset in range(3)),
        Fetch("c2", P, 1, b"1", leader_epoch=0),
    ],
    commits=[commit(1, 0), commit(2, 2), commit(1, 4, outcome=REFUSED), commit(0, 5, outcome=IN_DOUBT)],
    joins=[
        Joined("g", "m", 1, frozenset({P}), 0),
        Joined("g", "n", 1, frozenset({OTHER}), 0),
        Joined("g", "n", 2, frozenset({P, OTHER}), 2.5),
    ],
    committed=[CommittedOffset("g", P, 1, 1.5, 2.5), CommittedOffset("g", P, 2, 4, 5)],
    log_offsets=[LogOffsets(P, 0, 1, 2, 0, 1), LogOffsets(P, 0, 2, 3, 0.5, 2), LogOffsets(P, 0, 2, 2, 0.6, 3)],
    recoveries=[Recovery("produce", 1.0, 5.0)],
    log=log(0, 1, 2, 3),
)


def test_a_history_in_which_every_promise_was_kept() -> None:
    assert violations(GOOD) == []


BAD = {
    "an acknowledged record is missing": ({"produces": [*GOOD.produces, sent(6, 4)]}, 1, "lost-write"),
    "an acknowledged record is at another offset": ({"log": log(0, 2, 1, 3)}, 1, "lost-write"),
    "a record that was acknowledged without its offset is nowhere": (
        {"produces": [*GOOD.produces, sent(6)]}, 1, "lost-write",
    ),
    "a record that was read is gone": ({"fetches": [Fetch("c", P, 9, b"9")]}, 1, "unseen"),
    "a record is there twice": ({"log": log(0, 1, 2, 3, 3)}, 2, "duplicate"),
    "two readers saw different records": ({"fetches": [Fetch("c", P, 3, b"x")]}, 2, "inconsistent-offsets"),
    "a reader skips a record": (
        {"fetches": [Fetch("c", P, 0, b"0"), Fetch("c", P, 2, b"2")]}, 4, "poll-skip",
    ),
    "a reader goes back": (
        {"fetches": [Fetch("c", P, 1, b"1"), Fetch("c", P, 0, b"0")]}, 4, "nonmonotonic-poll",
    ),
    "a reader gets a record again": (
        {"fetches": [Fetch("c", P, 1, b"1"), Fetch("c", P, 1, b"1")]}, 4, "nonmonotonic-poll",
    ),
    "records of a producer change places": (
        {"log": log(0, 1, 2, 4, 3)}, 4, "nonmonotonic-send",
    ),
    "the last stable offset is above the high watermark": (
        {"log_offsets": [LogOffsets(P, 0, 3, 2, 0, 1)]}, 5, "offsets out of order",
    ),
    "the log start offset is above the last stable offset": (
        {"log_offsets": [LogOffsets(P, 3, 2, 3, 0, 1)]}, 5, "offsets out of order",
    ),
    "the log has a gap": ({"log": {P: [*log(0, 1, 2)[P], (4, b"3")]}}, 5, "gap"),
    "the high watermark goes back": (
        {"log_offsets": [LogOffsets(P, 0, 2, 3, 0, 1), LogOffsets(P, 0, 2, 2, 1.5, 2)]}, 5, "high watermark went back",
    ),
    "a committed offset goes back": (
        {"committed": [CommittedOffset("g", P, 1, 3.5, 4)]}, 5, "committed offset went back",
    ),
    "a leader epoch goes back": (
        {"fetches": [Fetch("c", P, 0, b"0", 3), Fetch("c", P, 1, b"1", 2)]}, 5, "leader epoch went back",
    ),
    "two members own a partition in one generation": (
        {"joins": [*GOOD.joins, Joined("g", "m", 2, frozenset({P}), 3)]}, 8, "two owners",
    ),
    "a commit of an old generation is accepted": (
        {"commits": [*GOOD.commits, commit(3, 6)]}, 8, "commit of an old generation",
    ),
    "two leaders acknowledge": (
        {"produces": [*GOOD.produces, Produce("v", 0, P, b"v", DONE, 2)]}, 10, "two leaders",
    ),
    "produce does not work again in time": ({"recoveries": [Recovery("produce", 6.0, 5.0)]}, 11, "no recovery"),
    "a refused record is there": ({"log": log(0, 1, 2, 3, 5)}, 12, "refused and done"),
    "half of a batch in doubt is there": (
        {"produces": [*GOOD.produces[:3], sent(3, outcome=IN_DOUBT, batch="b"), sent(4, outcome=IN_DOUBT, batch="b")]},
        12, "half a batch",
    ),
    "a record that nobody sent is there": ({"log": log(0, 1, 2, 3, 8)}, 12, "from nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_broken_promise_is_found(what: str) -> None:
    changes, invariant, name = BAD[what]
    assert (invariant, name) in found(replace(GOOD, **changes))


def test_without_idempotence_a_retried_record_may_be_there_twice() -> None:
    produces = [one._replace(is_idempotent=False) for one in GOOD.produces]
    assert violations(replace(GOOD, produces=produces, log=log(0, 1, 2, 3, 3))) == []
