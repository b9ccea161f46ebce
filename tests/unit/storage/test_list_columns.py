"""Lists of bytes that compiled code reads in place."""

from __future__ import annotations

import pytest

from rayka.storage.columns import lists, rows
from rayka.storage.columns.encode import Fields

VALUES = [b"first", None, b"", b"x" * 70_000, b"last"]


def items(fields: Fields) -> list[bytes | None]:
    pairs = zip(fields.positions.tolist(), fields.lengths.tolist(), strict=True)
    return [None if length < 0 else fields.data[start : start + length].tobytes() for start, length in pairs]


@pytest.fixture(params=[True, False], ids=["in place", "joined"])
def _layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_IS_KNOWN", request.param)


@pytest.mark.usefixtures("_layout")
@pytest.mark.parametrize("given", [VALUES, tuple(VALUES), [], [None], [b""], [bytearray(b"like bytes"), b"bytes"]])
def test_a_column_has_the_items_of_its_list(given: list[bytes | None]) -> None:
    assert items(rows.fields_of(given)) == list(given)


@pytest.mark.usefixtures("_layout")
@pytest.mark.parametrize("wrong", ["text", 7, ["b"], object()])
def test_a_list_with_anything_but_bytes_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        rows.fields_of([b"bytes", wrong])  # type: ignore[list-item]


def test_a_column_keeps_the_objects_that_it_reads() -> None:
    fields = rows.fields_of([b"%d" % number * 1000 for number in range(100)])
    others = [b"-" * 1000 for _ in range(1000)]  # would take the memory of the first ones
    assert items(fields) == [b"%d" % number * 1000 for number in range(100)]
    assert len(others) == 1000


def test_subclasses_of_bytes_are_copied() -> None:
    class Text(bytes):
        pass

    assert lists.address_items([Text(b"of a subclass")]) is None
    assert items(rows.fields_of([Text(b"of a subclass")])) == [b"of a subclass"]


def test_the_layout_of_this_python_is_known() -> None:
    assert lists.address_items([b"here"]) is not None


def test_items_are_found_wherever_a_processor_may_have_them() -> None:
    """A slice behind the end of an array is empty: a partitioner would get every key as an empty one."""
    size = len(rows.fields_of([b"here"]).data)
    highest_of_arm = 2**48
    assert size >= highest_of_arm


def test_a_column_can_be_printed() -> None:
    assert "Fields" in repr(rows.fields_of(VALUES))
