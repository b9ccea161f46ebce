"""Run tests that failed once more, one after the other, so that a flaky one is told from a fault.

python -m scripts.second_run CACHE_DIR

`CACHE_DIR` is the cache of the pytest run that failed. A test that passes now is named as flaky: it is a bug to be
found, but the run goes on. Apache Kafka's build treats its tests in the same way (`maxTestRetries=1`). Nothing runs
again, and the exit code is 1, when more than `MOST` tests failed, or when one of them injects faults: a record that is
lost once in ten runs is lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 2
INJECT_FAULTS = ("tests/faults/", "/test_faults.py")


def failed_tests(cache_dir: Path) -> list[str]:
    """The ids of the tests that failed in the run that wrote this cache."""
    kept = cache_dir / "v" / "cache" / "lastfailed"
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


def refusal(failed: list[str]) -> str | None:
    """Why these tests do not run again; None if they do."""
    if not failed:
        return "pytest failed without naming a test"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed; at most {MOST} run again"
    injecting = [test for test in failed if any(place in test for place in INJECT_FAULTS)]
    return f"a test that injects faults never runs again: {injecting[0]}" if injecting else None


def main(cache_dir: Path) -> int:
    failed = failed_tests(cache_dir)
    reason = refusal(failed)
    if reason:
        print(f"No second run: {reason}", flush=True)
        return 1
    print(f"Running again: {' '.join(failed)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={cache_dir}", *failed]).returncode
    if code == 0:
        print(f"FLAKY, find out why: {' '.join(failed)}", flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
