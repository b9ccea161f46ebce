"""The page of results compares medians, shows their spread, and calls nobody better when the ranges overlap."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as rounds
from benchmarks import report
from benchmarks.plots import bars


def results() -> report.Results:
    found = report.Results(rounds=3, seconds=10.0, command="python -m benchmarks", date="2026-11-22")
    for ours, theirs in ((100.0, 50.0), (110.0, 60.0), (90.0, 40.0)):
        found.add("produce-1k", "rayka", {"MB/s": ours, "CPU s/GB": 3.0})
        found.add("produce-1k", "kafka", {"MB/s": theirs, "CPU s/GB": ours / 40})
    return found


def test_a_row_has_medians_spreads_ratio_and_who_is_better() -> None:
    rows = {row[0]: row[1:] for row in report.rows(report.Results(**vars(results()))) if "MB/s" in row[0]}
    assert rows == {"produce 1 KB, no codec: MB/s": ("100 [90.0-110]", "-", "50.0 [40.0-60.0]", "2.00", "rayka")}


def test_a_row_says_when_it_has_fewer_rounds_than_the_others() -> None:
    found = results()
    found.rounds = 5
    assert next(row[0] for row in report.rows(found)) == "produce 1 KB, no codec (3 of 5 rounds): MB/s"


def test_a_resumed_run_measures_what_each_broker_lacks() -> None:
    found, chosen = results(), ["produce-1k", "latency"]
    assert rounds.due("rayka", chosen, 3, found) == ["latency"]
    assert rounds.due("rayka", chosen, 4, found) == chosen
    assert rounds.due("rayka-4", [*chosen, "recovery"], 1, found) == chosen


@pytest.mark.parametrize(
    ("ours", "theirs", "more_is_better", "better"),
    [
        ([3.0, 4.0], [1.0, 2.0], True, "rayka"),
        ([3.0, 4.0], [1.0, 2.0], False, "kafka"),
        ([1.0, 2.0], [3.0], False, "rayka"),
        ([1.0, 3.0], [2.0, 4.0], True, ""),
    ],
)
def test_better_needs_ranges_that_are_apart(
    ours: list[float], theirs: list[float], more_is_better: bool, better: str
) -> None:
    assert report.compared({"rayka": ours, "kafka": theirs}, more_is_better)[1] == better


def test_the_page_is_made_from_saved_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(report, "PLOTS", tmp_path / "plots")
    saved = tmp_path / "results" / "2026.json"
    results().save(saved)
    monkeypatch.setattr("sys.argv", ["report", str(saved)])
    report.main()
    assert "| produce 1 KB, no codec: MB/s | 100 [90.0-110] |" in (tmp_path / "performance.md").read_text()
    assert ElementTree.parse(tmp_path / "plots" / "produce-1k.svg").getroot().get("width") == "640"


def test_a_plot_names_every_bar() -> None:
    texts = [element.text for element in ElementTree.fromstring(bars("a & b", {"x": [1.0], "y": [2.0, 4.0]})).iter()]
    assert {"a & b", "x", "y", "1", "3"} <= set(texts)
