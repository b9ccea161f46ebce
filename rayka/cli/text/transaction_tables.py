"""Transactions as tables for people and fields for JSON. `-` is what there is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rayka.cli.tables import table
from rayka.cli.text.group_tables import assignment_text
from rayka.cli.text.record_text import time_text

if TYPE_CHECKING:
    from rayka.client.kafka.transactions import ProducerDescription, TransactionDescription, TransactionListing


_CLOSED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


def list_text(transactions: Sequence[TransactionListing]) -> str:
    """One row for each transactional id."""
    return table(("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"), transactions)


def describe_text(one: TransactionDescription, now_ms: int) -> str:
    """One line for each thing that is known of a transactional id."""
    is_open = one.start_ms is not None and one.state not in _CLOSED
    duration_s = f"{max(0, now_ms - (one.start_ms or 0)) / 1000:.1f} s" if is_open else None
    lines = {
        "transactional id": one.transactional_id,
        "coordinator": one.coordinator,
        "producer id": one.producer_id,
        "producer epoch": one.producer_epoch,
        "state": one.state,
        "timeout": f"{one.timeout_ms} ms",
        "started": "-" if one.start_ms is None else time_text(one.start_ms),
        "open for": duration_s or "-",
        "partitions": assignment_text(one.partitions),
    }
    return "\n".join(f"{name + ':':<18}{value}" for name, value in lines.items())


def producers_text(producers: Iterable[ProducerDescription]) -> str:
    """One row for each producer of each partition."""
    columns = (
        "TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH", "LAST-SEQUENCE", "LAST-WRITE",
        "START-OFFSET",
    )  # fmt: skip
    rows = [
        (
            *one.topic_partition, one.producer_id, one.producer_epoch, _known(one.coordinator_epoch),
            _known(one.last_sequence), time_text(one.last_timestamp_ms),
            "-" if one.start_offset is None else one.start_offset,
        )
        for one in producers
    ]  # fmt: skip
    return table(columns, rows)


def description_fields(one: TransactionDescription) -> dict[str, Any]:
    """For JSON."""
    return one._asdict() | {"partitions": [list(partition) for partition in one.partitions]}


def _known(number: int) -> int | str:
    return number if number >= 0 else "-"
