"""The results of a run, kept as data, and what is made of them: a table, docs/performance.md and its plots."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.measures import MEASURES
from benchmarks.plots import bars

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "plots"
RESULTS = Path(__file__).parent / "results"
NAMES = {"rayka": "rayka", "rayka-4": "rayka, 4 actors", "kafka": "Kafka"}
INTRODUCTION = """\
# Performance

This page compares rayka with Apache Kafka 4.4.0 on one machine. Kafka runs in KRaft mode on one node, with the JVM
flags of its own start script (G1, 1 GB heap). Both are measured with the same client, confluent-kafka, in a separate
process beside the broker. The brokers take turns, and the one that goes first changes from round to round. Each broker
is warmed up until two consecutive rates differ by less than 5 %.

Each figure is the median of {rounds} rounds of {seconds:g} s, or of as many as its row says, with the smallest and the
largest of them in brackets.
**Ratio** is rayka's median divided by Kafka's. **Better** names the broker that is ahead, and is empty where the ranges
overlap. Absolute figures vary between machines and from hour to hour, so look at the ratios.

"4 actors" is rayka with `partition.actors.per.node=4`, the default on machines with 8 cores or more. Most connections
then end in another process than their partition's leader. "CPU s" is the processor time of all processes of a broker;
for rayka that includes Ray's. While a client waits for small responses, rayka's gateway polls busily (not on a machine
with one core). That lowers latency at the cost of processor time, which "CPU s/M requests" shows.

- Measured on {date}, commit {commit}, {machine}
- Command: `{command}`
- Generated from `{source}` with `python -m benchmarks.report`
"""


@dataclass
class Results:
    """Every figure of every round: `figures[measure][broker]` has one entry for each round."""

    rounds: int
    seconds: float = 0.0
    command: str = ""
    date: str = ""
    commit: str = ""
    machine: str = ""
    notes: list[str] = field(default_factory=list)
    """What a reader of these figures must also know, such as other load on the machine: one dated fact each."""
    warm_up: dict[str, list[list[float]]] = field(default_factory=dict)
    figures: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)

    def add(self, measure: str, broker: str, figures: dict[str, float]) -> None:
        self.figures.setdefault(measure, {}).setdefault(broker, []).append(figures)

    def values(self, measure: str, figure: str) -> dict[str, list[float]]:
        """One figure of a measure: the values of all rounds, by broker."""
        return {
            broker: [entry[figure] for entry in entries]
            for broker, entries in self.figures[measure].items()
            if entries and figure in entries[0]
        }

    def rounds_of(self, measure: str, broker: str) -> int:
        """How many rounds of a measure a broker has had."""
        return len(self.figures.get(measure, {}).get(broker, []))

    @classmethod
    def load(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def rows(results: Results) -> Iterator[tuple[str, ...]]:
    """Title and unit, each broker's figure with its spread, ratio, better. What was not measured has no row."""
    for name, measure in MEASURES.items():
        for figure in (*measure.figures, *measure.costs) if name in results.figures else ():
            found = results.values(name, figure)
            if not found:
                continue
            more_is_better = measure.more_is_better and figure not in measure.costs
            shown = (spread(found.get(broker)) for broker in NAMES)
            had = min(map(len, found.values()))
            title = measure.title if had >= results.rounds else f"{measure.title} ({had} of {results.rounds} rounds)"
            yield (f"{title}: {figure}", *shown, *compared(found, more_is_better))


def compared(found: dict[str, list[float]], more_is_better: bool) -> tuple[str, str]:
    """rayka's median divided by Kafka's, and who is ahead if the ranges do not overlap."""
    ours, theirs = found.get("rayka"), found.get("kafka")
    if not ours or not theirs or not median(theirs):
        return "-", ""
    is_apart = min(ours) > max(theirs) or max(ours) < min(theirs)
    is_ours = (median(ours) > median(theirs)) == more_is_better
    return number(median(ours) / median(theirs)), ("rayka" if is_ours else "kafka") if is_apart else ""


def spread(values: list[float] | None) -> str:
    """The median, and the smallest and largest value."""
    if not values:
        return "-"
    return f"{number(median(values))} [{number(min(values))}-{number(max(values))}]"


def number(value: float) -> str:
    digits = next((digits for digits, least in enumerate((100, 10, 1)) if abs(value) >= least), 3)
    return f"{value:,.{digits}f}"


HEAD = ("", *NAMES.values(), "ratio", "better")


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


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def write_page(results: Results, source: Path) -> None:
    """Write docs/performance.md and one plot for each measure that both brokers have."""
    text = INTRODUCTION.format(**asdict(results), source=source.resolve().relative_to(ROOT))
    text += "\nNotes:\n\n" + "".join(f"- {note}\n" for note in results.notes) if results.notes else ""
    text += "\n"
    text += f"| what | {' | '.join(HEAD[1:])} |\n|{' --- |' * len(HEAD)}\n"
    text += "".join(f"| {' | '.join(row)} |\n" for row in rows(results))
    PLOTS.mkdir(parents=True, exist_ok=True)
    for name, measure in MEASURES.items():
        if name in results.figures and len(results.figures[name]) > 1:
            found = {NAMES[broker]: values for broker, values in results.values(name, measure.figures[0]).items()}
            title = f"{measure.title}: {measure.figures[0]}"
            (PLOTS / f"{name}.svg").write_text(bars(title, found))
            text += f"\n![{title}](plots/{name}.svg)\n"
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", help="a file of benchmarks/results; default: the newest")
    source = parser.parse_args().results or max(RESULTS.glob("*.json"))
    write_page(Results.load(source), source)


if __name__ == "__main__":
    main()
