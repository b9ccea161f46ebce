"""The compatibility page says what the table says."""

from __future__ import annotations

from pathlib import Path

from rayka.gateway.api import APIS
from rayka.gateway.compatibility import REMARKS, page

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m rayka.gateway.compatibility > docs/compatibility.md"


def test_remarks_are_about_apis_that_are_served() -> None:
    assert {int(key) for key in REMARKS} <= set(APIS)
