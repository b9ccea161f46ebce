"""`./check long`: every test with many more examples and kills, then a long soak; writes docs/long-check.md.

python -m scripts.long_check [--only Spark] [--minutes 240] [--soak-minutes 60]

The page is written after each part, and keeps the last result of every part: one that is not run this time stays as it
was. Ctrl-C or SIGTERM ends the part that runs; the page then says what it had shown by then.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "long-check.md"
SOAK = "soak: a broker at full load"
ENDING_S = 300
"""How long a part may take to end its brokers and to write its report when its time is over."""


class Part(NamedTuple):
    """Tests that run together, and the variable that names their interpreter, if it is not this one."""

    arguments: tuple[str, ...]
    python: str = ""


PARTS = {
    "unit and property tests": Part(("-n", "2", "--dist", "worksteal", "tests/unit", "tests/property")),
    "faults: kills, pauses, proxies, damaged files": Part(("tests/faults",)),
    "Kafka clients": Part(("-n", "2", "--dist", "loadfile", "tests/clients")),
    "commands and Python clients": Part(("tests/integration",)),
    "examples": Part(("tests/examples",)),
    "Ray Data": Part(("tests/ray_data",)),
    "Spark": Part(("tests/spark",)),
    "PySpark 4": Part(("tests/spark4",), "SPARK4_PYTHON"),
    "Ray Serve": Part(("tests/serve",), "SERVE_PYTHON"),
}
INTRODUCTION = """\
# The last long check

`./check long` runs every test of `./check` with 50 times as many examples and histories in the property tests and with
20 kills where `./check` makes 3, and then loads a broker for an hour and watches its memory. This is the last result of
each of its parts, written by `scripts/long_check.py`. The seed is that of the property tests (`RAYKA_SEED`).

| part | last run | seed | tests | failed | skipped | minutes | remarks |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
NOT_RUN = "| {title} | not run yet | | | | | | |"


class Outcome(NamedTuple):
    """What came of one part."""

    took_s: float
    tests: int = 0
    skipped: int = 0
    failures: Sequence[str] = ()
    remarks: str = ""
    is_interrupted: bool = False
    """Whether Ctrl-C or SIGTERM ended it: no more parts are run."""


def run_part(part: Part, seed: str, minutes: float) -> Outcome:
    """Run pytest on one part in long mode; it is ended after so many minutes."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        python = os.environ[part.python] if part.python else sys.executable
        done = run(
            [python, "-m", "pytest", f"--hypothesis-seed={seed}", f"--junitxml={report}", *part.arguments], minutes
        )
        return with_report(done, report) if report.exists() else done._replace(failures=["pytest wrote no report"])


def run(command: Sequence[str], minutes: float) -> Outcome:
    """Run a command in long mode, for at most so many minutes or until this program is to end."""
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"RAYKA_CHECK": "long"}, process_group=0)
    try:
        process.wait(minutes * 60)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as reason:
        remarks = f"ended after {(time.monotonic() - began) / 60:.0f} minutes"
        end(process)
        return Outcome(time.monotonic() - began, remarks=remarks, is_interrupted=isinstance(reason, KeyboardInterrupt))
    return Outcome(time.monotonic() - began)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, so that brokers are stopped and the report is written; kill -9 if that does not help."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_S)
    process.kill()
    process.wait()


def with_report(done: Outcome, report: Path) -> Outcome:
    """The outcome with what pytest's report says."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    failures = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return done._replace(tests=int(suite.get("tests", 0)), skipped=int(suite.get("skipped", 0)), failures=failures)


def soak(minutes: float) -> Outcome:
    """Load a broker for so long; the remarks are the figures of `benchmarks.soak`."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "soak.json"
        command = [sys.executable, "-m", "benchmarks.soak", "--minutes", str(minutes), "--json", str(result)]
        done = run(command, minutes + 2 * ENDING_S / 60)._replace(tests=1)
        if not result.exists():
            return done._replace(failures=["benchmarks.soak"])
        figures: dict[str, float] = json.loads(result.read_text())
    remarks = (
        "{minutes:g} minutes: {records:,.0f} records, {MB/s:,.0f} MB/s; memory of all processes {MB/h:+,.0f} MB an hour"
    )
    return done._replace(remarks=remarks.format(**figures))


def row(title: str, done: Outcome, seed: str) -> str:
    """The line of the page for one part."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    when = f"{datetime.date.today()}, commit {commit.strip()}, {machine}"
    remarks = "; ".join([done.remarks] * bool(done.remarks) + [f"failed: `{failure}`" for failure in done.failures])
    cells = (title, when, seed, done.tests, len(done.failures), done.skipped, f"{done.took_s / 60:.1f}", remarks)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def write(rows: dict[str, str]) -> None:
    """Put these lines into the page; the other parts keep theirs."""
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in read_page().splitlines() if line.startswith("| ")}
    lines = [rows.get(title) or kept.get(title) or NOT_RUN.format(title=title) for title in (*PARTS, SOAK)]
    PAGE.write_text(INTRODUCTION + "\n".join(lines) + "\n")


def read_page() -> str:
    """The page as it is; empty if there is none."""
    return PAGE.read_text() if PAGE.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="run the parts whose titles begin so; may be repeated")
    parser.add_argument("--minutes", type=float, default=240.0, help="end a part after so long; default: %(default)s")
    parser.add_argument("--soak-minutes", type=float, default=60.0, help="default: %(default)s")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = os.environ.get("RAYKA_SEED", "0")
    rows: dict[str, str] = {}
    failed = False
    for title in (*PARTS, SOAK):
        if chosen.only and not title.startswith(tuple(chosen.only)):
            continue
        print(f"== {title}; RAYKA_SEED={seed} repeats its property tests", flush=True)
        done = soak(chosen.soak_minutes) if title == SOAK else run_part(PARTS[title], seed, chosen.minutes)
        rows[title] = row(title, done, seed)
        failed |= bool(done.failures) or done.is_interrupted
        write(rows)
        if done.is_interrupted:
            break
    print(PAGE.read_text())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
