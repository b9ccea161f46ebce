"""Decides from what clients saw, and from nothing else, whether a broker kept its promises.

A `History` holds every produce, fetch, commit and look at offsets that clients made during a run, and what a reader
found in the log after the faults had stopped. `violations` says which invariants of INVARIANTS.md it breaks; the names
in brackets are those of Jepsen's Kafka workload. Nothing here runs a client: times are seconds on one clock, and an
operation that began after another had ended is later, while two that overlap have no order.

The log of these runs has no transactions, retention or compaction, so offsets in it are consecutive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeVar

Partition = tuple[str, int]
"""Topic and number."""
Event = TypeVar("Event")


class Outcome(Enum):
    """What the client was told of an operation."""

    DONE = "acknowledged"
    REFUSED = "an error that says it was not done"
    IN_DOUBT = "a time-out or a lost connection: it may have been done"


class Produce(NamedTuple):
    """One record. `number` is its place among the records that its producer sent; values are unique.

    `offset` is -1 when the client was not told: of a retry that the broker knows to be an old duplicate it is not.

    Records of one `batch` were sent in one record batch, where the client knows that. `is_idempotent` is False also of
    a producer that gives records up after a short time: `tests.faults.recorded.RecordedProducer` says why.
    """

    producer: str
    number: int
    partition: Partition
    value: bytes
    outcome: Outcome
    offset: int = -1
    batch: str | None = None
    is_idempotent: bool = True


class Fetch(NamedTuple):
    """One record that a consumer got. `position` names an assignment of it, in which offsets are consecutive."""

    position: str
    partition: Partition
    offset: int
    value: bytes
    leader_epoch: int = -1


class Commit(NamedTuple):
    """A member's commit of the offset that it would read next."""

    group: str
    member: str
    generation: int
    partition: Partition
    offset: int
    outcome: Outcome
    began_s: float
    ended_s: float


class Joined(NamedTuple):
    """A member learned its assignment of a generation."""

    group: str
    member: str
    generation: int
    partitions: frozenset[Partition]
    at_s: float


class CommittedOffset(NamedTuple):
    """What a look at a group's committed offset found."""

    group: str
    partition: Partition
    offset: int
    began_s: float
    ended_s: float


class LogOffsets(NamedTuple):
    """What a look at a partition found. The offsets were asked for in this order: each may be older than the next."""

    partition: Partition
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    began_s: float
    ended_s: float


class Recovery(NamedTuple):
    """How long after the faults stopped an operation worked again, and how long it may take."""

    what: str
    took_s: float
    bound_s: float


class Violation(NamedTuple):
    """A promise that was not kept: the number of the invariant, a name for the way, and what was seen."""

    invariant: int
    name: str
    detail: str


@dataclass
class History:
    """All events of a run, each list in the order in which its client saw them; `log` is read after the faults."""

    produces: list[Produce] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    joins: list[Joined] = field(default_factory=list)
    committed: list[CommittedOffset] = field(default_factory=list)
    log_offsets: list[LogOffsets] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    log: dict[Partition, list[tuple[int, bytes]]] = field(default_factory=dict)


def violations(history: History) -> list[Violation]:
    """Every promise that the history shows broken, in the order of the invariants."""
    return [violation for check in CHECKS for violation in check(history)]


def by(events: Iterable[Event], key: Callable[[Event], Hashable]) -> dict[Hashable, list[Event]]:
    """Group events, in their order."""
    groups: dict[Hashable, list[Event]] = defaultdict(list)
    for event in events:
        groups[key(event)].append(event)
    return groups


def in_log(history: History) -> dict[Partition, dict[int, bytes]]:
    """The log by offset."""
    return {partition: dict(rows) for partition, rows in history.log.items()}


def acknowledged_records_are_readable(history: History) -> Iterator[Violation]:
    """1: at the offset that was acknowledged [lost-write], and so is what a consumer has seen [unseen]."""
    logs = in_log(history)
    for sent in history.produces:
        log = logs.get(sent.partition, {})
        is_there = log.get(sent.offset) == sent.value if sent.offset >= 0 else sent.value in log.values()
        if sent.outcome is Outcome.DONE and not is_there:
            yield Violation(1, "lost-write", f"{sent.value!r} was acknowledged at {sent.partition} {sent.offset}")
    for seen in history.fetches:
        if seen.offset not in logs.get(seen.partition, {}):
            yield Violation(1, "unseen", f"{seen.value!r} was read at {seen.partition} {seen.offset} and is gone")


def a_value_has_one_offset(history: History) -> Iterator[Violation]:
    """2: a record of an idempotent producer is in the log once [duplicate]; gaps would hide another."""
    idempotent = {sent.value for sent in history.produces if sent.is_idempotent}
    found = by(((partition, *row) for partition, rows in history.log.items() for row in rows), lambda row: row[2])
    for value, places in found.items():
        if value in idempotent and len(places) > 1:
            yield Violation(2, "duplicate", f"{value!r} is at {[place[:2] for place in places]}")


def an_offset_has_one_value(history: History) -> Iterator[Violation]:
    """2: over time, readers and restarts [inconsistent-offsets]."""
    values: dict[tuple[Partition, int], set[bytes]] = defaultdict(set)
    for seen in history.fetches:
        values[seen.partition, seen.offset].add(seen.value)
    for partition, rows in history.log.items():
        for offset, value in rows:
            values[partition, offset].add(value)
    for (partition, offset), held in values.items():
        if len(held) > 1:
            yield Violation(2, "inconsistent-offsets", f"{partition} {offset} held {sorted(held)}")


def readers_go_on_record_by_record(history: History) -> Iterator[Violation]:
    """4: a consumer never skips [poll-skip] and never goes back [nonmonotonic-poll] by itself."""
    for position, fetches in by(history.fetches, lambda seen: (seen.position, seen.partition)).items():
        for one, other in pairwise(fetches):
            if other.offset <= one.offset:
                yield Violation(4, "nonmonotonic-poll", f"{position} read {one.offset}, then {other.offset}")
            elif other.offset > one.offset + 1:
                yield Violation(4, "poll-skip", f"{position} read {one.offset}, then {other.offset}")


def producers_keep_their_order(history: History) -> Iterator[Violation]:
    """4: what a producer sends to a partition lies there in the order of sending [nonmonotonic-send]."""
    offsets = {(part, value): offset for part, rows in history.log.items() for offset, value in reversed(rows)}
    ordered = (sent for sent in history.produces if sent.is_idempotent)
    for (producer, partition), sent in by(ordered, lambda one: (one.producer, one.partition)).items():
        written = [(one.number, offsets[partition, one.value]) for one in sent if (partition, one.value) in offsets]
        for (_, before), (number, offset) in pairwise(sorted(written)):
            if offset <= before:
                yield Violation(4, "nonmonotonic-send", f"{producer}'s record {number} is at {partition} {offset}")


def offsets_are_in_order(history: History) -> Iterator[Violation]:
    """5: log start offset <= last stable offset <= high watermark, and the log has no gaps."""
    for seen in history.log_offsets:
        if not seen.log_start_offset <= seen.last_stable_offset <= seen.high_watermark:
            yield Violation(5, "offsets out of order", f"{seen}")
    for partition, rows in history.log.items():
        for (one, _), (other, _) in pairwise(rows):
            if other != one + 1:
                yield Violation(5, "gap", f"{partition} goes from {one} to {other}")


def offsets_never_go_back(history: History) -> Iterator[Violation]:
    """5: neither the high watermark, nor a committed offset, nor the leader epoch."""
    for partition, looks in by(history.log_offsets, lambda seen: seen.partition).items():
        for before, after in went_back(looks, lambda seen: seen.high_watermark):
            yield Violation(5, "high watermark went back", f"{partition}: {before} then {after}")
    for key, committed in by(offsets_of_groups(history), lambda one: (one.group, one.partition)).items():
        for before, after in went_back(committed, lambda one: one.offset):
            yield Violation(5, "committed offset went back", f"{key}: {before} then {after}")
    for partition, fetches in by(history.fetches, lambda seen: seen.partition).items():
        by_offset = sorted((seen.offset, seen.leader_epoch) for seen in fetches if seen.leader_epoch >= 0)
        for (_, epoch), (offset, next_epoch) in pairwise(by_offset):
            if next_epoch < epoch:
                yield Violation(5, "leader epoch went back", f"{partition} {offset}: {epoch} then {next_epoch}")


def offsets_of_groups(history: History) -> list[CommittedOffset]:
    """Looks at committed offsets, and acknowledged commits, which are as good as looks."""
    done = [one for one in history.commits if one.outcome is Outcome.DONE]
    return history.committed + [
        CommittedOffset(one.group, one.partition, one.offset, one.began_s, one.ended_s) for one in done
    ]


def went_back(looks: Sequence[Event], number: Callable[[Event], int]) -> Iterator[tuple[Event, Event]]:
    """Pairs of which the later one has a smaller number. Looks that overlap have no order."""
    ended = sorted(looks, key=lambda look: look.ended_s)
    highest, at = None, 0
    for look in sorted(looks, key=lambda look: look.began_s):
        while ended[at].ended_s < look.began_s:
            highest = ended[at] if highest is None or number(ended[at]) > number(highest) else highest
            at += 1
        if highest is not None and number(look) < number(highest):
            yield highest, look


def a_partition_has_one_owner(history: History) -> Iterator[Violation]:
    """8: in a generation of a group."""
    owners: dict[tuple[str, int, Partition], set[str]] = defaultdict(set)
    for joined in history.joins:
        for partition in joined.partitions:
            owners[joined.group, joined.generation, partition].add(joined.member)
    for key, members in owners.items():
        if len(members) > 1:
            yield Violation(8, "two owners", f"{key}: {sorted(members)}")


def old_generations_commit_nothing(history: History) -> Iterator[Violation]:
    """8: a commit that began when a later generation was known is not acknowledged."""
    for group, commits in by(history.commits, lambda one: one.group).items():
        joins = [joined for joined in history.joins if joined.group == group]
        for commit in commits:
            newer = [one for one in joins if one.generation > commit.generation and one.at_s < commit.began_s]
            if commit.outcome is Outcome.DONE and newer:
                yield Violation(8, "commit of an old generation", f"{commit} after {newer[0]}")


def one_leader_acknowledges(history: History) -> Iterator[Violation]:
    """10: an offset is given to one record only; two leaders of a partition would both give it."""
    done = (sent for sent in history.produces if sent.outcome is Outcome.DONE and sent.offset >= 0)
    for place, sent in by(done, lambda one: (one.partition, one.offset)).items():
        if len(sent) > 1:
            yield Violation(10, "two leaders", f"{place} was acknowledged for {[one.value for one in sent]}")


def service_resumes(history: History) -> Iterator[Violation]:
    """11: after the faults stop, within a bound."""
    for one in history.recoveries:
        if one.took_s > one.bound_s:
            yield Violation(11, "no recovery", f"{one.what} took {one.took_s:.1f} s of {one.bound_s:.1f} s")


def nothing_is_half_done(history: History) -> Iterator[Violation]:
    """12: a refused record is nowhere, a batch is there as a whole or not at all, and nobody wrote what is there."""
    values = {value for rows in history.log.values() for _, value in rows}
    for sent in history.produces:
        if sent.outcome is Outcome.REFUSED and sent.value in values:
            yield Violation(12, "refused and done", f"{sent.value!r} of {sent.producer}")
    in_batches = (sent for sent in history.produces if sent.batch is not None)
    for batch, sent in by(in_batches, lambda one: (one.producer, one.batch)).items():
        there = [one.number for one in sent if one.value in values]
        if 0 < len(there) < len(sent):
            yield Violation(12, "half a batch", f"{batch}: {there} of {[one.number for one in sent]}")
    for value in values - {sent.value for sent in history.produces}:
        yield Violation(12, "from nowhere", f"nobody sent {value!r}")


CHECKS: tuple[Callable[[History], Iterator[Violation]], ...] = (
    acknowledged_records_are_readable,
    a_value_has_one_offset,
    an_offset_has_one_value,
    readers_go_on_record_by_record,
    producers_keep_their_order,
    offsets_are_in_order,
    offsets_never_go_back,
    a_partition_has_one_owner,
    old_generations_commit_nothing,
    one_leader_acknowledges,
    service_resumes,
    nothing_is_half_done,
)
