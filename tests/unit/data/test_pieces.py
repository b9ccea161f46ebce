"""The pieces of a read task, which must be the same in every run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from rayka.data.pieces import even_pieces
from rayka.storage.columns.read import SCHEMA

ROWS = 5_000
PIECE_BYTES = 20_000
COLUMN_SETS = [tuple(SCHEMA.names), ("value",), ("partition",), ("headers",), ("key", "offset")]


@pytest.fixture(scope="module")
def records() -> pa.RecordBatch:
    """Records of all kinds: without key, value or headers, and some larger than a piece."""
    chance = random.Random(7)
    rows = []
    for offset in range(ROWS):
        value = chance.randbytes(3 * PIECE_BYTES if offset % 997 == 5 else chance.randrange(300))
        headers = [("h", chance.choice([b"x" * chance.randrange(40), None])) for _ in range(chance.randrange(3))]
        rows.append(
            {
                "key": None if offset < ROWS // 2 else b"%d" % offset,
                "value": None if chance.randrange(40) == 0 else value,
                "topic": "t",
                "partition": 0,
                "offset": offset,
                "timestamp": offset,
                "timestampType": 0,
                "headers": [{"key": key, "value": value} for key, value in headers] or None,
            }
        )
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def cut(batch: pa.RecordBatch, count: int, seed: int, *, copied: bool = False) -> list[pa.RecordBatch]:
    """The batch in so many parts, as the tables of an actor are, each with its own memory if it is to be copied."""
    cuts = sorted(random.Random(seed).sample(range(batch.num_rows), count))
    parts = [batch.slice(begin, end - begin) for begin, end in itertools.pairwise([0, *cuts, batch.num_rows])]
    return [part.take(pa.array(range(part.num_rows))) for part in parts] if copied else parts


def pieces(batches: Sequence[pa.RecordBatch]) -> list[pa.Table]:
    return list(even_pieces(batches, batches[0].schema, PIECE_BYTES))


@pytest.mark.parametrize("columns", COLUMN_SETS)
def test_tables_that_are_cut_elsewhere_give_the_same_pieces(records: pa.RecordBatch, columns: tuple[str, ...]) -> None:
    wanted = records.select(columns)
    first = pieces([wanted])
    assert pa.concat_tables(first).equals(pa.Table.from_batches([wanted]))
    assert len(first) > 1
    for seed, count in enumerate((1, 7, 900)):
        again = pieces(cut(wanted, count, seed, copied=seed % 2 == 0))
        assert [each.num_rows for each in again] == [each.num_rows for each in first]
        assert [each.nbytes for each in again] == [each.nbytes for each in first], "Ray Data cuts by this"
        assert all(one.equals(other) for one, other in zip(again, first, strict=True))


def test_pieces_are_bounded_in_bytes(records: pa.RecordBatch) -> None:
    for piece in pieces(cut(records, 20, 1)):
        largest = max(len(value or b"") for value in piece["value"].to_pylist())
        assert piece.nbytes <= largest + 1.2 * PIECE_BYTES


def test_a_piece_does_not_keep_the_table_that_it_was_in(records: pa.RecordBatch) -> None:
    for piece in pieces([records]):
        assert piece.get_total_buffer_size() <= piece.nbytes * 1.1 + 1_000


def test_a_table_with_larger_offsets_gives_the_same_pieces(records: pa.RecordBatch) -> None:
    """The tables of an actor have them where a key or value column has 2 GB."""
    wide = pa.schema(
        [field.with_type(pa.large_binary()) if field.name in ("key", "value") else field for field in SCHEMA]
    )
    mixed = [each.cast(wide) if index % 2 else each for index, each in enumerate(cut(records, 6, 1))]
    assert [each.nbytes for each in pieces(mixed)] == [each.nbytes for each in pieces([records])]
    assert pa.concat_tables(pieces(mixed)).equals(pa.Table.from_batches([records]))


def test_no_records_give_one_empty_piece_with_columns() -> None:
    """Else Ray Data makes a block without columns, on which filters and sorts fail."""
    empty = pa.RecordBatch.from_pylist([], SCHEMA)
    for batches in ([], [empty], [empty, empty]):
        assert list(even_pieces(batches, SCHEMA, PIECE_BYTES)) == [SCHEMA.empty_table()]


@pytest.mark.parametrize("columns", COLUMN_SETS)
def test_records_up_to_a_cut_are_not_followed_by_an_empty_piece(
    records: pa.RecordBatch, columns: tuple[str, ...]
) -> None:
    empty = records.select(columns).slice(0, 0)
    for piece_bytes in (1, PIECE_BYTES):
        given = even_pieces([empty, records.select(columns), empty], empty.schema, piece_bytes)
        assert all(each.num_rows for each in given)
