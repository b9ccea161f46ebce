"""The code blocks of the README and of docs/, which tests run as they stand there.

A block is run by tests/examples/test_documents.py, unless a comment in the line before names the test that runs it:
`<!-- run by tests/spark/test_tour.py -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_BLOCK = re.compile(r"(?:^<!-- run by (?P<test>\S+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it begins, its language, and the test that runs it if that is another one."""

    document: str
    line: int
    language: str
    text: str
    test: str | None

    @property
    def name(self) -> str:
        """For messages: README.md:14."""
        return f"{self.document}:{self.line}"


def documents() -> list[Path]:
    """The README and every page of docs/."""
    return [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path) -> list[Block]:
    """The code blocks of a document, in order."""
    text = document.read_text()
    name = str(document.relative_to(ROOT))
    return [
        Block(name, text.count("\n", 0, match.start("text")), match["language"], match["text"], match["test"])
        for match in _BLOCK.finditer(text)
    ]


def program(heading: str, directory: Path, document: Path = README) -> str:
    """The first Python program below a heading; what it keeps in /tmp or /data goes below `directory`."""
    section = document.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return relocated(section.partition("```python\n")[2].partition("```")[0], directory)


def relocated(text: str, directory: Path) -> str:
    """The program with its paths below `directory`."""
    return text.replace('"/tmp/', f'"{directory}/').replace('"/data/', f'"{directory}/')
