"""The states of a record follow KIP-932 and KIP-1191."""

from __future__ import annotations

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.share.record_state import (
    ACKNOWLEDGED,
    ACQUIRED,
    AFTER,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    TRANSITIONS,
    AcknowledgeType,
    RecordState,
    acknowledge_type,
    released_state,
)


def test_states_have_the_numbers_that_kafka_persists() -> None:
    assert [int(state) for state in RecordState] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("state", RecordState)
def test_no_state_follows_itself(state: RecordState) -> None:
    assert state not in TRANSITIONS[state]


@pytest.mark.parametrize("state", [ACKNOWLEDGED, ARCHIVED])
def test_nothing_follows_a_terminal_state(state: RecordState) -> None:
    assert state.is_terminal
    assert not TRANSITIONS[state]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (AcknowledgeType.GAP, ARCHIVED),
        (AcknowledgeType.ACCEPT, ACKNOWLEDGED),
        (AcknowledgeType.RELEASE, AVAILABLE),
        (AcknowledgeType.REJECT, ARCHIVED),
    ],
)
def test_acknowledgements_ask_for_the_states_of_the_protocol(said: AcknowledgeType, state: RecordState) -> None:
    assert AFTER[said] is state
    assert state in TRANSITIONS[ACQUIRED]
    assert ARCHIVING in TRANSITIONS[ACQUIRED]


@pytest.mark.parametrize("number", [-1, 5, 127])
def test_unknown_acknowledge_types_are_refused(number: int) -> None:
    with pytest.raises(RaykaError) as refused:
        acknowledge_type(number)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("delivery_count", "state"), [(1, AVAILABLE), (4, AVAILABLE), (5, ARCHIVED), (6, ARCHIVED)])
def test_a_record_that_used_up_its_deliveries_is_archived(delivery_count: int, state: RecordState) -> None:
    assert released_state(delivery_count, limit=5) is state
