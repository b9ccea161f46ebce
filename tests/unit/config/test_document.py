"""docs/configuration.md is made from the code, and is current."""

from __future__ import annotations

from pathlib import Path

from rayka.config import BROKER_CONFIGS, TOPIC_CONFIGS
from rayka.config.document import render
from rayka.config.groups import GROUP_CONFIGS

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m rayka.config > docs/configuration.md"


def test_the_page_names_every_setting() -> None:
    page = render()
    names = {*BROKER_CONFIGS, *TOPIC_CONFIGS, *GROUP_CONFIGS} - {"internal.segment.bytes"}
    assert [name for name in sorted(names) if f"| `{name}` |" not in page] == []
