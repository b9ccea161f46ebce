"""An overlay behaves like a changed copy of its base, which stays as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rayka.coordinator.overlay import Overlay

KEYS = st.integers(0, 5)
OPERATIONS = st.lists(st.tuples(st.sampled_from(["set", "delete", "pop"]), KEYS, st.integers()), max_size=20)


@given(st.dictionaries(KEYS, st.integers()), OPERATIONS)
def test_an_overlay_is_a_changed_copy(base: dict[int, int], operations: list[tuple[str, int, int]]) -> None:
    before = dict(base)
    overlay, copy = Overlay(base), dict(base)
    for operation, key, value in operations:
        assert apply(overlay, operation, key, value) == apply(copy, operation, key, value)
        assert dict(overlay) == copy
        assert (len(overlay), [overlay.get(one) for one in range(6)]) == (
            len(copy),
            [copy.get(one) for one in range(6)],
        )
        assert [one in overlay for one in range(6)] == [one in copy for one in range(6)]
        assert list(overlay.values()) == [overlay[key] for key in overlay]
    nested = Overlay(overlay)
    nested[9] = 1
    assert dict(nested) == {**copy, 9: 1}
    assert (dict(overlay), base) == (copy, before)
    assert overlay.merge() is base
    assert base == copy


def apply(mapping: Any, operation: str, key: int, value: int) -> object:
    match operation:
        case "set":
            mapping[key] = value
        case "pop":
            try:
                return mapping.pop(key, None) if value % 2 else mapping.pop(key)
            except KeyError:
                return KeyError
        case "delete":
            try:
                del mapping[key]
            except KeyError:
                return KeyError
    return None
