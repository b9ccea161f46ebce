"""Plain tables and sizes for people."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their content, numbers to the right."""
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
