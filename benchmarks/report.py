"""Medians over the rounds, ratios, and the two forms they are shown in: a table and a page."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.measures import MEASURES

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
INTRODUCTION = """\
# Performance

rayka and Apache Kafka 4.4.0 (KRaft, one node, 1 GB heap) in turns on one machine, with the same client
(confluent-kafka) in a process of its own on the same machine. Each figure is the median of {rounds} rounds; the ratio
is rayka's figure through Kafka's, and **better** says which of the two is ahead. Absolute figures vary from machine to
machine and from hour to hour: the ratio counts.

- {date}, {machine}
- `{command}`

"""


@dataclass
class Results:
    """Every figure of every round: `figures[measure][broker]` has one entry for each round."""

    rounds: int
    figures: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)

    def add(self, measure: str, broker: str, figures: dict[str, float]) -> None:
        self.figures.setdefault(measure, {}).setdefault(broker, []).append(figures)

    def medians(self, measure: str, figure: str) -> dict[str, float]:
        by_broker: Mapping[str, Sequence[dict[str, float]]] = self.figures[measure]
        return {
            broker: median(entry[figure] for entry in entries)
            for broker, entries in by_broker.items()
            if entries and figure in entries[0]
        }


def rows(results: Results) -> Iterator[tuple[str, str, str, str, str]]:
    """Title and unit, rayka, Kafka, ratio, better."""
    for name, measure in MEASURES.items():
        if name not in results.figures:
            continue
        for figure in measure.figures:
            found = results.medians(name, figure)
            ours, theirs = found.get("rayka"), found.get("kafka")
            ratio = ours / theirs if ours is not None and theirs else None
            better = "" if ratio is None else "rayka" if (ratio >= 1) == measure.more_is_better else "kafka"
            yield f"{measure.title}: {figure}", number(ours), number(theirs), number(ratio), better


def number(value: float | None) -> str:
    if value is None:
        return "-"
    digits = next((digits for digits, least in enumerate((100, 10, 1)) if abs(value) >= least), 3)
    return f"{value:,.{digits}f}"


HEAD = ("", "rayka", "kafka", "ratio", "better")


def table(results: Results) -> str:
    lines = [HEAD, *rows(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores with {memory:.0f} GiB, {system}"


def write_page(results: Results, command: str) -> None:
    text = INTRODUCTION.format(rounds=results.rounds, date=datetime.date.today(), machine=machine(), command=command)
    text += "| what | rayka | Kafka | ratio | better |\n| --- | --- | --- | --- | --- |\n"
    text += "".join(f"| {' | '.join(row)} |\n" for row in rows(results))
    PAGE.write_text(text)
