"""The share coordinator against a model: for every offset the strongest of what was written counts.

At every step the coordinator, and one that loads its log, have the state of the model. In between the log is pruned,
writes come late or twice, leaders change, appends fail, and share-partitions begin anew.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.coordinator.shares.batches import combine
from rayka.coordinator.shares.requests import StateBatch, WriteShareGroupStateRequest
from rayka.errors import ErrorCode
from tests.support.scale import examples
from tests.unit.coordinator.shares.shell import TOPIC_ID, ShareShell

OFFSETS = 24
BATCHES = st.builds(
    lambda first, size, state, count, at: StateBatch(first, first + size, state, count, 0 if state else at),
    st.integers(0, OFFSETS),
    st.integers(0, 8),
    st.sampled_from((0, 2, 3, 4)),
    st.integers(1, 5),
    st.sampled_from((0, 0, 1_700_000_000_000, 1_800_000_000_000)),
)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.lists(BATCHES, max_size=4), st.integers(-1, OFFSETS)),
    st.tuples(st.just("again"), st.integers(0, 30)),
    st.tuples(st.just("lead"), st.integers(0, 2)),
    st.tuples(st.just("initialize"), st.integers(-1, 1), st.integers(-1, OFFSETS)),
    st.tuples(st.just("fail"), st.lists(BATCHES, max_size=2)),
    st.tuples(st.just("wait")),
)

Strength = tuple[int, int, int]


@dataclass
class Model:
    """What must be read: the state of each offset as (delivery count, delivery state, delay)."""

    state_epoch: int = 1
    leader_epoch: int = 0
    start_offset: int = 0
    offsets: dict[int, Strength] = field(default_factory=dict)

    def write(self, batches: tuple[StateBatch, ...], start_offset: int) -> None:
        """Apply a write."""
        self.start_offset = max(self.start_offset, start_offset)
        self.offsets = strongest(self.offsets, batches, self.start_offset)


def strongest(known: dict[int, Strength], batches: tuple[StateBatch, ...], start_offset: int) -> dict[int, Strength]:
    """What counts for each offset from the start offset on."""
    offsets = dict(known)
    for batch in batches:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            strength = (batch.delivery_count, batch.delivery_state, batch.available_at)
            offsets[offset] = max(offsets.get(offset, strength), strength)
    return {offset: strength for offset, strength in offsets.items() if offset >= start_offset}


def by_offset(batches: tuple[StateBatch, ...]) -> dict[int, Strength]:
    """The offsets of batches that are apart."""
    return strongest({}, batches, -1)


@given(st.lists(BATCHES, max_size=8), st.lists(BATCHES, max_size=8), st.integers(-1, OFFSETS))
@settings(max_examples=examples(200), deadline=None)
def test_batches_combine_to_the_fewest_that_say_the_same(
    first: list[StateBatch], second: list[StateBatch], start_offset: int
) -> None:
    current = combine((), first, -1)
    combined = combine(current, second, start_offset)
    assert by_offset(combined) == strongest(by_offset(current), tuple(second), start_offset)
    for one, two in itertools.pairwise(combined):
        assert one.last_offset < two.first_offset
        assert one.last_offset + 1 < two.first_offset or one[2:] != two[2:], "neighbours that are alike are one batch"


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=examples(100), deadline=None)
def test_the_state_is_that_of_the_model_at_every_step(steps: list[tuple[object, ...]]) -> None:
    shell, model = ShareShell(), Model()
    shell.initialize(partition=0)
    shell.initialize(partition=1)
    sent: list[WriteShareGroupStateRequest] = []
    for step in steps:
        apply(shell, model, sent, step)
        summary, state = shell.summary(), shell.read(leader_epoch=model.leader_epoch)
        assert (summary.state_epoch, summary.leader_epoch) == (model.state_epoch, model.leader_epoch)
        assert state.start_offset == summary.start_offset == model.start_offset
        assert by_offset(state.state_batches) == model.offsets
        assert shell.loaded().durable() == shell.core.durable()


def apply(shell: ShareShell, model: Model, sent: list[WriteShareGroupStateRequest], step: tuple[object, ...]) -> None:
    """Carry out one step on both."""
    match step:
        case ("write", list(batches), int(start_offset)):
            request = _write(model, batches, start_offset)
            sent.append(request)
            assert shell.ask(request).error is ErrorCode.NONE
            model.write(request.state_batches, request.start_offset)
        case ("again", int(index)) if sent:
            request = sent[index % len(sent)]
            is_accepted = request.leader_epoch >= model.leader_epoch and request.state_epoch >= model.state_epoch
            assert (shell.ask(request).error is ErrorCode.NONE) == is_accepted
            if is_accepted:
                model.write(request.state_batches, request.start_offset)
        case ("lead", int(more)):
            model.leader_epoch += more
            assert shell.read(leader_epoch=model.leader_epoch).error is ErrorCode.NONE
        case ("initialize", int(more), int(start_offset)):
            is_accepted = more >= 0
            error = shell.initialize(state_epoch=model.state_epoch + more, start_offset=start_offset)
            assert (error is ErrorCode.NONE) == is_accepted
            if more > 0:
                model.state_epoch += more
                model.start_offset, model.offsets = start_offset, {}
        case ("fail", list(batches)):
            answer = shell.ask(_write(model, batches, -1), ErrorCode.KAFKA_STORAGE_ERROR)
            assert answer.error is ErrorCode.NOT_COORDINATOR
        case ("wait",):
            shell.wait(shell.settings.cold_snapshot_interval_ms)


def _write(model: Model, batches: list[StateBatch], start_offset: int) -> WriteShareGroupStateRequest:
    return WriteShareGroupStateRequest(
        "g", TOPIC_ID, 0, model.state_epoch, model.leader_epoch, start_offset, 0, tuple(batches)
    )
