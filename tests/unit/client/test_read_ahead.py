"""How much is fetched ahead for each kind of program."""

from __future__ import annotations

import pytest

from rayka.client.consumer.positions import AssignedPartition
from rayka.client.consumer.read_ahead import FOR_BATCHES, FOR_RECORDS, FOR_TABLES, ReadAhead
from rayka.client.consumer.stored import StoredBatches, StoredFetch
from rayka.types import FileSlice, TopicPartition

EVENTS = TopicPartition("events", 0)


def partition(*, is_large: bool, is_damaged: bool = False) -> AssignedPartition:
    """A partition whose last answer stayed in its file, or in which no table could be made of what comes next."""
    state = AssignedPartition(EVENTS)
    state.found(0)
    state.has_large_batches, state.check_until = is_large, int(is_damaged)
    return state


@pytest.mark.parametrize(
    ("ahead", "state", "answers", "factor"),
    [
        (FOR_RECORDS, partition(is_large=False), 2, 1),
        (FOR_RECORDS, partition(is_large=True), 2, 1),
        (FOR_BATCHES, partition(is_large=False), 1, 4),
        (FOR_BATCHES, partition(is_large=True), 1, 4),
        (FOR_TABLES, partition(is_large=False), 1, 4),
        (FOR_TABLES, partition(is_large=True), 2, 24),
        (FOR_TABLES, partition(is_large=True, is_damaged=True), 1, 1),
    ],
)
def test_answers_ahead_and_their_size(ahead: ReadAhead, state: AssignedPartition, answers: int, factor: int) -> None:
    assert ahead.factor(state) == factor
    wanted = 0
    while ahead.wants_more(state):
        batches = StoredBatches(EVENTS, FileSlice("00000000000000000000.log", 0, 1), (), 0, state.fetch_offset)
        state.put(StoredFetch(batches))
        wanted += 1
    state.forget()
    assert wanted == answers


@pytest.mark.parametrize("ahead", [FOR_RECORDS, FOR_BATCHES, FOR_TABLES])
def test_nothing_is_fetched_of_a_paused_partition(ahead: ReadAhead) -> None:
    state = partition(is_large=False)
    state.pause()
    assert not ahead.wants_more(state)
