"""The programs in the README, which tests run as they stand there."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def program(heading: str, directory: Path) -> str:
    """The first Python program below a heading; what it keeps in /tmp goes below `directory`."""
    section = README.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return section.partition("```python\n")[2].partition("```")[0].replace('"/tmp/', f'"{directory}/')
