"""Lists of bytes as columns, read by compiled code in place: no byte is copied, and Python accesses no item.

CPython's layout of lists and bytes is the same from 3.11 to 3.13. Where it is another one, as in builds without a GIL,
`address_items` says so and the items are joined instead.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rayka.storage.columns.compiled import CompiledFunction, compiled
from rayka.storage.columns.decode import Bytes, Longs

_WORD = 8
_FIRST_ADDRESS = _WORD
"""Where the arrays that stand for all memory begin; the address 0 would be no array."""
_LAST_ADDRESS = 2**56
"""No processor has a process's memory behind this: x86-64 has up to 2^47 or 2^56, ARM 2^48 or 2^52."""
_TYPE = 1
_SIZE = object.__basicsize__ // _WORD
_LIST_ITEMS = _SIZE + 1
"""Where an object has its type and its size, and a list the address of its items; in words."""
_BYTES_DATA = bytes.__basicsize__ - 1
"""Where an object of bytes has them, which a zero follows."""
_KNOWN_SIZES = 33, 40, _WORD
"""Of an object of bytes, of a list and of an address, with a GIL."""
_NULL = -1


class _Memory:
    """All memory of this process as an array, which keeps `owner` alive."""

    def __init__(self, owner: object, kind: str, size: int) -> None:
        self._owner = owner
        shape = ((_LAST_ADDRESS - _FIRST_ADDRESS) // size,)
        self.__array_interface__ = {"version": 3, "typestr": kind, "shape": shape, "data": (_FIRST_ADDRESS, True)}


_WORDS: Any = np.asarray(_Memory(None, "<i8", _WORD))


@compiled
def locate_items(
    memory: Longs, of_list: int, count: int, of_bytes: int, of_none: int, positions: Longs, lengths: Longs
) -> bool:
    """Set where the bytes of each item of a list lie behind `_FIRST_ADDRESS`, and how many there are, -1 for None.

    The list is at the address `of_list`, and those of `bytes` and None are given too. False for an item of another
    type. Nothing else may change the list meanwhile.
    """
    items = memory[of_list // 8 - 1 + _LIST_ITEMS] // 8 - 1
    for row in range(count):
        item = memory[items + row]
        at = item // 8 - 1
        if memory[at + _TYPE] == of_bytes:
            lengths[row] = memory[at + _SIZE]
            positions[row] = item + _BYTES_DATA - _FIRST_ADDRESS
        elif item == of_none:
            lengths[row] = _NULL
            positions[row] = 0
        else:
            return False
    return True


_locate_briefly = cast(CompiledFunction, locate_items).run_briefly


def address_items(given: Sequence[Any]) -> tuple[Bytes, Longs, Longs] | None:
    """All memory, where the bytes of each item begin in it, and their lengths, -1 for None.

    None where an item is of another type, or the layout of objects is not known. A list is used as it is, also later:
    it must not change any more.
    """
    if not _IS_KNOWN:
        return None
    items = given if type(given) is list else list(given)
    positions, lengths = np.empty(len(items), np.int64), np.empty(len(items), np.int64)
    if not _locate_briefly(_WORDS, id(items), len(items), id(bytes), id(None), positions, lengths):
        return None
    return np.asarray(_Memory(items, "|u1", 1)), positions, lengths


def _is_known() -> bool:
    """Whether lists and bytes are as `locate_items` expects them."""
    sizes = bytes.__basicsize__, list.__basicsize__, ctypes.sizeof(ctypes.c_void_p)
    if sys.implementation.name != "cpython" or sizes != _KNOWN_SIZES:
        return False
    probe = [b"probe"]
    item = _word(_word(id(probe) + _LIST_ITEMS * _WORD))
    return (
        item == id(probe[0])
        and _word(item + _TYPE * _WORD) == id(bytes)
        and _word(item + _SIZE * _WORD) == len(probe[0])
        and ctypes.string_at(item + _BYTES_DATA) == probe[0]
    )


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


_IS_KNOWN = _is_known()
