"""Items as bytes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.queue.items import pickled
from rayka.queue.settings import MAX_ITEM_BYTES
from rayka.storage.format.pieces import Pieces

LARGE = bytes(range(256)) * 4096


@pytest.mark.parametrize("item", [b"", b"x", "text", 7, None, (1, [b"y"]), LARGE, [LARGE, 1, LARGE], "t" * 1_000_000])
def test_an_item_is_pickled(item: Any) -> None:
    assert pickle.loads(bytes(pickled(item))) == item


@pytest.mark.parametrize("item", [LARGE, [1, LARGE]], ids=["bytes", "in a list"])
def test_large_bytes_are_not_copied(item: Any) -> None:
    data = pickled(item)
    assert isinstance(data, Pieces)
    assert any(piece is LARGE for piece in data.buffers)


def test_what_changes_later_is_copied() -> None:
    changing = bytearray(LARGE)
    data = pickled([changing])
    changing[:] = bytes(len(changing))
    assert pickle.loads(bytes(data)) == [LARGE]


def test_small_items_and_functions_are_in_one_piece() -> None:
    assert isinstance(pickled({"a": 1}), bytes)
    function = pickle.loads(bytes(pickled(lambda: LARGE[:3])))
    assert function() == LARGE[:3]


def test_an_array_keeps_its_values() -> None:
    array = np.arange(200_000)
    assert np.array_equal(pickle.loads(bytes(pickled(array))), array)


@pytest.mark.parametrize("item", [bytes(MAX_ITEM_BYTES), [bytes(MAX_ITEM_BYTES)], "x" * MAX_ITEM_BYTES])
def test_a_too_large_item_is_refused(item: Any) -> None:
    with pytest.raises(RaykaError) as raised:
        pickled(item)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
