"""Plain Python compiled to machine code by numba, for work on every record.

Importing this takes half a second: the broker's own path keeps away from it. Compiled code lies in
`__pycache__` beside the source (or where NUMBA_CACHE_DIR says), so only the first call ever waits for the
compiler. It runs without the GIL, beside a serving loop in the same process. It has no bounds checks:
whatever reads foreign bytes compares each position with the end first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """`function` as machine code, compiled at the first call with each kind of argument."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))
