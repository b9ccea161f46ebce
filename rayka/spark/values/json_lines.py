"""The compiled half of decoding JSON: which values are one object each, and the values as lines.

Arrow's parser reads lines. It takes two objects in one line for two rows and none for no row, so that the rows would
no longer stand beside their records. Whether an object is well-formed inside is left to the parser.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rayka.storage.columns.compiled import compiled

_QUOTE, _BACKSLASH = 0x22, 0x5C
_SPACE, _TAB, _LINE_FEED, _RETURN = 0x20, 0x09, 0x0A, 0x0D
_CURLY, _SQUARE, _CURLY_END, _SQUARE_END = 0x7B, 0x5B, 0x7D, 0x5D


@compiled
def is_one_object(data: Any, start: int, end: int) -> bool:
    """Whether the bytes are one object with white space around it, by their brackets and strings."""
    depth = 0
    in_string = is_closed = False
    position = start
    while position < end:
        byte = data[position]
        if in_string:
            if byte == _BACKSLASH:
                position += 1
            elif byte == _QUOTE:
                in_string = False
            elif byte < _SPACE:
                return False
        elif byte in (_SPACE, _TAB, _LINE_FEED, _RETURN):
            pass
        elif is_closed or (depth == 0 and byte != _CURLY):
            return False
        elif byte == _QUOTE:
            in_string = True
        elif byte in (_CURLY, _SQUARE):
            depth += 1
        elif byte in (_CURLY_END, _SQUARE_END):
            depth -= 1
            is_closed = depth == 0
        position += 1
    return is_closed


@compiled
def find_objects(data: Any, positions: Any, lengths: Any, found: Any) -> None:
    """Set in `found` which of the fields are one object."""
    for row in range(len(positions)):
        found[row] = is_one_object(data, positions[row], positions[row] + lengths[row])


@compiled
def write_lines(data: Any, positions: Any, lengths: Any, out: Any) -> int:
    """Write a line for each field, and return the bytes written. Line ends within an object are white space."""
    to = 0
    for row in range(len(positions)):
        for position in range(positions[row], positions[row] + lengths[row]):
            byte = data[position]
            out[to] = _SPACE if byte in (_LINE_FEED, _RETURN) else byte
            to += 1
        out[to] = _LINE_FEED
        to += 1
    return to


def lines_of(data: Any, positions: Any, lengths: Any) -> memoryview:
    """The fields as lines."""
    out = np.empty(int(lengths.sum()) + len(lengths), np.uint8)
    written = out[: write_lines(data, positions, lengths, out)]
    return memoryview(written.data)
