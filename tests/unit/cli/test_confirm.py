"""Commands that delete ask on a terminal, and only there."""

from __future__ import annotations

import sys

import click
import pytest

from rayka.cli.exits import CliError
from rayka.cli.parsing import confirm


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)


@pytest.mark.usefixtures("on_a_terminal")
def test_answering_no_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "confirm", lambda question, err: False)
    with pytest.raises(CliError, match="nothing was changed"):
        confirm("Delete topic events?", yes=False)


@pytest.mark.usefixtures("on_a_terminal")
def test_yes_skips_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(click, "confirm", lambda question, err: not asked.append(question))
    confirm("Delete topic events?", yes=False)
    assert asked == ["Delete topic events?"]


@pytest.mark.usefixtures("on_a_terminal")
def test_the_option_answers_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "confirm", lambda question, err: pytest.fail("asked"))
    confirm("Delete topic events?", yes=True)


def test_a_script_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    monkeypatch.setattr(click, "confirm", lambda question, err: pytest.fail("asked"))
    confirm("Delete topic events?", yes=False)
