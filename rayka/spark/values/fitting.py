"""Plain values as their Arrow columns can hold them.

Arrow makes a column of Python's values, and raises where a number is too large. But it cuts off fractions and times of
day, takes numbers for times, and texts for arrays. What is here raises ValueError instead.
"""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

Fit = Callable[[Any], Any]
"""Returns a value that Arrow converts without a loss. A value that is not null; raises ValueError or OverflowError."""
_FLOAT = struct.Struct("<f")


def fitting(fields: Any) -> Fit:
    """Fits rows, which are dicts, to the fields of an Arrow schema or struct. A field that a row lacks is null."""
    fits = [(field.name, fit_of(field.type)) for field in fields]

    def fit(row: Any) -> dict[str, Any]:
        if not isinstance(row, dict):
            raise ValueError(f"{_shown(row)} is not a record")
        return {name: None if (value := row.get(name)) is None else fit(value) for name, fit in fits}

    return fit


def fit_of(wanted: pa.DataType) -> Fit:
    """Fits values of one type."""
    types = pa.types
    if types.is_struct(wanted):
        return fitting([wanted.field(number) for number in range(wanted.num_fields)])
    if types.is_list(wanted):
        return _array(fit_of(wanted.value_type))
    if types.is_map(wanted):
        return _map(fit_of(wanted.key_type), fit_of(wanted.item_type))
    if types.is_integer(wanted):
        return _whole
    if types.is_floating(wanted):
        return _float if types.is_float32(wanted) else _not_decimal
    if types.is_string(wanted):
        return _text
    if types.is_date(wanted):
        return _date
    return _timestamp if types.is_timestamp(wanted) else _as_it_is


def _array(fit: Fit) -> Fit:
    def fit_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"{_shown(value)} is not an array")
        return [None if each is None else fit(each) for each in value]

    return fit_all


def _map(fit_key: Fit, fit: Fit) -> Fit:
    def fit_all(value: Any) -> list[tuple[Any, Any]]:
        pairs = value.items() if isinstance(value, dict) else value
        return [(fit_key(key), None if each is None else fit(each)) for key, each in pairs]

    return fit_all


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    """UUIDs are texts to Spark."""
    return str(value) if isinstance(value, uuid.UUID) else value


def _whole(value: Any) -> Any:
    """Numbers without a fraction are integers, also if they were written as `double`."""
    if isinstance(value, (int, str, bytes)):
        return value
    if not isinstance(_not_decimal(value), float) or not value.is_integer():
        raise ValueError(f"{_shown(value)} is not an integer")
    return int(value)


def _not_decimal(value: Any) -> Any:
    """Spark reads decimals into decimals alone."""
    if isinstance(value, decimal.Decimal):
        raise ValueError(f"{_shown(value)} is a decimal: its column must be one, as in decimal(10, 2)")
    return value


def _float(value: Any) -> Any:
    """Rounded, but not to infinity."""
    _FLOAT.pack(_not_decimal(value))
    return value


def _date(value: Any) -> Any:
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        raise ValueError(f"{_shown(value)} is not a date")
    return value


def _timestamp(value: Any) -> Any:
    if not isinstance(value, datetime.datetime):
        raise ValueError(f"{_shown(value)} is not a timestamp")
    if getattr(value, "nanosecond", 0):
        raise ValueError(f"{_shown(value)} is finer than a microsecond")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:80]
