"""Writes the folders of the package, and a table of the files in each, into docs/architecture.md.

    python scripts/file_tables.py            rewrites what stands between the two markers
    python scripts/file_tables.py --check    exit code 1 if that would change anything

What a folder or a file is comes from the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- files: made by scripts/file_tables.py -->\n", "<!-- end of files -->\n"


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line and without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.])\.(?:\s|$)|:\s(?=.{80})", paragraph)[0]
    return sentence.replace("|", "\\|").strip()


def tables() -> Iterator[str]:
    """The section, line by line."""
    folders = sorted({path.parent for path in (ROOT / "rayka").rglob("*.py")})
    for folder in folders:
        files = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
        if not files:
            continue
        count = f"{len(files)} file" + ("s" if len(files) > 1 else "")
        yield f"### `{folder.relative_to(ROOT)}`\n"
        yield f"{first_sentence(folder / '__init__.py')} ({count}).\n"
        yield "| file | what it is |"
        yield "| --- | --- |"
        yield from (f"| `{path.name}` | {first_sentence(path)} |" for path in files)
        yield ""


def main(check: bool) -> int:
    """Rewrite the section; the exit code."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"{before}{BEGIN}\n{chr(10).join(tables())}\n{END}{after}"
    if check:
        return int(made != text)
    DOCUMENT.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
