"""`./check long`: every test with many more examples and kills, then a long soak; writes docs/long-check.md.

python -m scripts.long_check [--soak-minutes 60] [--only faults]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "long-check.md"
PARTS = {
    "unit and property tests": ("-n", "2", "tests/unit", "tests/property"),
    "faults: kills, pauses, proxies, damaged files": ("tests/faults",),
    "Kafka clients": ("-n", "2", "--dist", "loadfile", "tests/clients"),
    "commands and Python clients": ("tests/integration",),
    "examples": ("tests/examples",),
    "Ray Data": ("tests/ray_data",),
    "Spark": ("tests/spark",),
}
INTRODUCTION = """\
# The last long check

`./check long` runs every test of `./check` with 50 times as many examples and histories in the property tests and with
20 kills where `./check` makes 3, and then loads a broker for an hour and watches its memory. This is its last result.

- {date}, commit {commit}, {machine}
- seed of the property tests: {seed}

| part | tests | failed | skipped | minutes |
| --- | --- | --- | --- | --- |
"""


SOAK = """
Soak: {minutes:.0f} minutes at full load, {records:,.0f} records, {MB/s:,.0f} MB/s; the memory of all processes changed
by {MB/h:+,.0f} MB an hour.
"""


class Outcome(NamedTuple):
    """What came of one part."""

    title: str
    tests: int
    failed: int
    skipped: int
    took_s: float
    failures: list[str]


def run_part(title: str, arguments: tuple[str, ...], seed: str) -> Outcome:
    """Run pytest on one part in long mode."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--hypothesis-seed={seed}", f"--junitxml={report}", *arguments]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"RAYKA_CHECK": "long"}, check=False)
        took_s = time.monotonic() - began
        if not report.exists():
            return Outcome(title, 0, 1, 0, took_s, [f"{title}: pytest wrote no report"])
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    failures = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    return Outcome(title, tests, len(failures), skipped, took_s, failures)


def soak(minutes: float) -> dict[str, float]:
    """Load a broker for so long; the figures of `benchmarks.soak`."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "soak.json"
        command = [sys.executable, "-m", "benchmarks.soak", "--minutes", str(minutes), "--json", str(result)]
        subprocess.run(command, cwd=ROOT, check=True)
        figures: dict[str, float] = json.loads(result.read_text())
    return figures


def page(outcomes: list[Outcome], soaked: dict[str, float], seed: str) -> str:
    """The text of docs/long-check.md."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    text = INTRODUCTION.format(date=datetime.date.today(), commit=commit.strip(), machine=machine, seed=seed)
    for one in outcomes:
        text += f"| {one.title} | {one.tests} | {one.failed} | {one.skipped} | {one.took_s / 60:.1f} |\n"
    if soaked:
        text += SOAK.format(**soaked)
    failures = [failure for one in outcomes for failure in one.failures]
    text += "".join(f"\n- failed: `{failure}`" for failure in failures) + ("\n" if failures else "")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soak-minutes", type=float, default=60.0, help="0: no soak")
    parser.add_argument("--only", default="", help="run the parts whose titles have this word")
    chosen = parser.parse_args()
    seed = os.environ.get("RAYKA_SEED", "0")
    parts = {title: arguments for title, arguments in PARTS.items() if chosen.only in title}
    outcomes = [run_part(title, arguments, seed) for title, arguments in parts.items()]
    soaked = soak(chosen.soak_minutes) if chosen.soak_minutes else {}
    text = page(outcomes, soaked, seed)
    print(text)
    if not chosen.only:
        PAGE.write_text(text)
    return 1 if any(one.failed for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
