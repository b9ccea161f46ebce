"""The C code of `native_records.c`, where it was compiled; None elsewhere, and then plain Python does the same work."""

from __future__ import annotations

import importlib
from types import ModuleType

_INTERFACE = 1
"""What this version of rayka calls. A checkout may have code that was compiled from an earlier source."""


def _load() -> ModuleType | None:
    try:
        module = importlib.import_module("rayka.client.native_records")
    except ImportError:
        return None
    return module if module.INTERFACE == _INTERFACE else None


native_records = _load()
