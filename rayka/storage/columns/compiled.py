"""Plain Python compiled to machine code by numba, for work on every record.

The first call with arguments of some kinds compiles, for a second or more, and stores the machine code in
`__pycache__` beside the source (or where NUMBA_CACHE_DIR says). Every later process loads that code with llvmlite
alone, in a few hundredths of a second, and does not import numba. The code runs without the GIL, beside a serving loop
in the same process. It has no bounds checks: whatever reads foreign bytes compares each position with the end first.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from array import array
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from rayka.storage.columns.intrinsics import Intrinsic
from rayka.storage.columns.native_code import FIRST_SLOT, INT, Kind, NativeCode, load_code

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., object])

_RESULT_COUNTS = {"None": 0, "int": 1, "bool": 1, "tuple[int, int]": 2}
_MOST_DIMENSIONS = 2
_ARRAYS = {
    np.dtype(name): [f"{name}:{dimensions}" for dimensions in range(_MOST_DIMENSIONS + 1)]
    for name in ("uint8", "int32", "uint32", "int64", "uint64")
}
_CONTIGUOUS_AND_ALIGNED = 0x101
_NO_SLOTS = [0] * FIRST_SLOT
_loading = threading.RLock()
os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def compiled(function: F) -> F:
    """`function` as machine code. Its arguments are arrays, ints, and named tuples of arrays. It makes no arrays."""
    return cast(F, CompiledFunction(cast(FunctionType, function)))


class CompiledFunction:
    """A function that Python calls as machine code, and that other compiled functions call too.

    What no code can be stored for, such as arrays with gaps or results that are not ints, is left to numba.
    """

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._result = function.__annotations__.get("return")
        self._codes: dict[tuple[Kind, ...], NativeCode | None] = {}

    def __call__(self, *arguments: Any) -> Any:
        return self._run(arguments, is_brief=False)

    def run_briefly(self, *arguments: Any) -> Any:
        """As a call, and no other thread runs meanwhile: for work that takes much less than the 5 ms after which a busy
        thread gives the GIL back.
        """
        return self._run(arguments, is_brief=True)

    def _run(self, arguments: tuple[Any, ...], is_brief: bool) -> Any:
        slots = array("q", _NO_SLOTS)
        try:
            kinds = tuple([_put(argument, slots) for argument in arguments])
        except (TypeError, OverflowError):
            return self.dispatcher(*arguments)
        code = self._codes[kinds] if kinds in self._codes else self._load(kinds)
        if code is None:
            return self.dispatcher(*arguments)
        code.run(slots, is_brief)
        if self._result == "int":
            return slots[0]
        if self._result == "bool":
            return bool(slots[0])
        return None if self._result == "None" else (slots[0], slots[1])

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The function as numba has it, for Python."""
        return self._dispatcher(cache=True)

    @functools.cached_property
    def borrowing(self) -> Any:
        """The function as numba has it, for code that does not own the arrays and counts no references to them."""
        return self._dispatcher(borrowing=True, _nrt=False)

    def _dispatcher(self, borrowing: bool = False, **options: Any) -> Any:
        import numba

        linked = {
            name: callee.borrowing if borrowing else callee.dispatcher for name, callee in self._callees().items()
        }
        intrinsics = {
            name: each.intrinsic for name, each in self.function.__globals__.items() if isinstance(each, Intrinsic)
        }
        names = {**self.function.__globals__, **linked, **intrinsics}
        function = FunctionType(self.function.__code__, names, self.function.__name__)
        function.__qualname__ = self.function.__qualname__
        return numba.njit(nogil=True, **options)(function)

    def reachable(self) -> set[CompiledFunction]:
        """This function, and the compiled ones that it calls, and that these call."""
        found, left = {self}, [self]
        while left:
            new = set(left.pop()._callees().values()) - found
            found |= new
            left += new
        return found

    def _callees(self) -> dict[str, CompiledFunction]:
        known = self.function.__globals__
        called = {name: known.get(name) for name in self.function.__code__.co_names}
        return {name: each for name, each in called.items() if isinstance(each, CompiledFunction)}

    def _load(self, kinds: tuple[Kind, ...]) -> NativeCode | None:
        with _loading:
            if kinds not in self._codes:
                self._codes[kinds] = self._stored_code(kinds)
            return self._codes[kinds]

    def _stored_code(self, kinds: tuple[Kind, ...]) -> NativeCode | None:
        count = _RESULT_COUNTS.get(str(self._result))
        if count is None:
            return None
        try:
            return load_code(self, kinds, count)
        except Exception as error:
            logger.warning("%s: %r; numba loads the function instead", self.function.__qualname__, error)
            return None


def _put(argument: Any, slots: array[int]) -> Kind:
    """Append an argument to the slots; its kind. Raises TypeError and OverflowError for what can't be there."""
    if type(argument) is np.ndarray:
        kinds, dimensions = _ARRAYS.get(argument.dtype, ()), argument.ndim
        if dimensions >= len(kinds) or argument.flags.num & _CONTIGUOUS_AND_ALIGNED != _CONTIGUOUS_AND_ALIGNED:
            raise TypeError("an array of another type, or with gaps")
        slots.append(id(argument))
        if dimensions == 1:
            slots.append(len(argument))
        else:
            slots.extend(argument.shape)
        return kinds[dimensions]
    if isinstance(argument, tuple):
        return type(argument), tuple([_put(field, slots) for field in argument])
    if type(argument) is not int and not isinstance(argument, (int, np.signedinteger)):
        raise TypeError("neither an array nor a number")
    slots.append(int(argument))
    return INT
