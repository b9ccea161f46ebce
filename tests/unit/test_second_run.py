"""`./check` runs a failed test once more, and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.second_run import failed_tests, main, refusal

FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once():
    seen = Path(__file__).with_suffix(".seen")
    was_seen = seen.exists()
    seen.touch()
    assert was_seen

def test_that_passes():
    pass
"""


def run_pytest(directory: Path, text: str) -> Path:
    """Run the tests in `text`; the cache of the run."""
    (directory / "test_it.py").write_text(text)
    cache_dir = directory / "cache"
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache_dir}", f"--rootdir={directory}", "test_it.py"]
    subprocess.run(command, cwd=directory, capture_output=True, timeout=60)
    return cache_dir


def test_a_test_that_passes_the_second_time_is_named_as_flaky(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(run_pytest(tmp_path, FAILS_ONCE)) == 0

    assert "FLAKY, find out why: test_it.py::test_that_fails_once" in capfd.readouterr().out


def test_a_test_that_fails_twice_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(run_pytest(tmp_path, "def test_it(): assert False")) == 1


def test_a_run_that_names_no_test_is_not_repeated(tmp_path: Path) -> None:
    assert failed_tests(tmp_path) == []
    assert main(tmp_path) == 1


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        (["a", "b", "c"], "3 tests failed; at most 2 run again"),
        (["tests/faults/test_kills.py::test_a"], "a test that injects faults never runs again: tests/faults/"),
        (["tests/spark4/test_faults.py::test_a"], "a test that injects faults never runs again: tests/spark4/"),
    ],
)
def test_many_failures_and_tests_that_inject_faults_do_not_run_again(failed: list[str], reason: str) -> None:
    assert (refusal(failed) or "").startswith(reason)


def test_two_failures_of_other_tests_run_again() -> None:
    assert refusal(["tests/clients/test_a.py::test_a", "tests/spark/test_b.py::test_b"]) is None
