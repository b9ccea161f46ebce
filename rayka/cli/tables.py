"""Tables and sizes for people. On a terminal rich draws the tables; in a pipe they are plain text."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their content, numbers to the right."""
    return _drawn(columns, rows) if sys.stdout.isatty() else _plain(columns, rows)


def print_list(text: str, nothing: str) -> None:
    """Print a list. An empty one is reported on standard error, so that a program that reads the list gets no line."""
    if text:
        print(text)
    else:
        print(f"rayka: {nothing}", file=sys.stderr)


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[index], int) for row in rows)
        drawn.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(str(cell) for cell in row))
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _plain(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    right = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in zip(*parts, strict=True)
        )
        for parts in ((line, widths, right) for line in [list(columns), *cells])
    ]
    return "\n".join(line.rstrip() for line in lines)


def size_text(size: int | None) -> str:
    """Bytes with a unit, `-` for none."""
    if size is None:
        return "-"
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def plural(count: int, noun: str) -> str:
    """`1 partition`, `4 partitions`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
