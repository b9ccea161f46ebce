"""Lists of bytes that compiled code reads in place."""

from __future__ import annotations

import numpy as np
import pytest

from rayka.storage.columns import lists, rows
from rayka.storage.columns.encode import Fields
from rayka.storage.format.records import read_records, seal_batch

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


def test_values_of_any_size_are_in_their_records() -> None:
    """Large values are copied after all other fields, whatever is between them."""
    values = [b"%d" % number * (number * 37) if number % 5 else None for number in range(100)]
    sizes = {len(value) for value in values if value is not None}
    assert any(size < 512 for size in sizes)
    assert any(size > 5_000 for size in sizes)
    keys = [b"key %d" % number * number if number % 3 else None for number in range(100)]
    headers = [(("name", b"header" * number), ("null", None)) if number % 2 else () for number in range(100)]
    records = rows.rows_of(values, keys, headers, np.arange(100))
    batches = list(rows.write_rows(records, max_batch_size=20_000))
    assert len(batches) > 5
    read = [record for batch in batches for record in read_records(batch.buffer)]
    assert [record.value for record in read] == values
    assert [record.key for record in read] == keys
    assert [record.headers for record in read] == headers
    one = rows.encode_lists(values, keys, headers, [number * 1_000_000 for number in range(100)])
    assert one is not None
    sealed = seal_batch(one, record_count=100, base_timestamp=0, max_timestamp=99)
    assert [(*record[1:5],) for record in read_records(sealed)] == [(*record[1:5],) for record in read]


@pytest.mark.parametrize("size", [511, 512, 513])
def test_values_around_the_size_from_which_they_are_copied_apart(size: int) -> None:
    values = [bytes([number]) * (size + number % 2) for number in range(10)]
    (batch,) = rows.write_rows(rows.rows_of(values, None, None, np.zeros(10, np.int64)), max_batch_size=1 << 20)
    assert [record.value for record in read_records(batch.buffer)] == values
