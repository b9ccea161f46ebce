"""Packages whose names are loaded when they are first used (PEP 562), so that importing the package is quick."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def needs_extra(package: str, extra: str | None) -> Iterator[None]:
    """Add to the error about a missing package which extra of rayka installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if extra is not None:
            error.add_note(f"{package} needs the extra `{extra}`: pip install '.[{extra}]' in the checkout of rayka")
        raise


def lazy_names(
    package: str, module_of: Mapping[str, str], extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose public names are in other modules, which need an extra."""

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs_extra(package, extra):
            value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return load, names
