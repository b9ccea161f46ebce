"""Settings from `server.properties` files and `NAME=VALUE` arguments.

The file format is java.util.Properties: `#` and `!` open a comment line, the first unescaped `=`, `:` or
blank ends the name, a backslash at the end of a line continues it, and backslashes escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rayka.cli.exits import CliError, Exit

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """The names and values of a properties file; a later line wins."""
    found: dict[str, str] = {}
    for line in _logical_lines(text.splitlines()):
        match = _ENTRY.fullmatch(line)
        if match is not None:
            found[_unescape(match[1])] = _unescape(match[2])
    return found


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` arguments as a mapping. Raises CliError(USAGE) for one without `=` or without a name."""
    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise CliError(f"{assignment!r} is not of the form NAME=VALUE", Exit.USAGE)
        found[name.strip()] = value.strip()
    return found


def _logical_lines(lines: Sequence[str]) -> Iterator[str]:
    pending = ""
    for raw in lines:
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        pending += line
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        yield pending
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return _ESCAPED.sub(plain, text)
