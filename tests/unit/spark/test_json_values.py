"""JSON values as columns, and those that can't be."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import json_values

SCHEMA = StructType(
    [
        StructField("n", LongType()),
        StructField("s", StringType()),
        StructField("t", TimestampType()),
        StructField("d", DoubleType()),
    ]
)
GOOD = {
    b'{"n": 1, "s": "a}{\\"b", "t": "2024-05-06T07:08:09Z", "d": 1e3}': (1, 'a}{"b', 1714979289000000, 1000.0),
    b' {\n"n":\r\n\t2}\n': (2, None, None, None),
    b"{}": (None, None, None, None),
    b'{"other": [{"n": 7}, {}]}': (None, None, None, None),
    b'{"n": null, "s": "\\u00e4 \xc3\xa4"}': (None, "ä ä", None, None),
}
BAD = [
    b"", b" ", b"null", b"[]", b"7", b'"{}"', b"no json", b'{"n": 1', b'{"n": 1}}', b'{"n": 1} {"n": 2}', b'{"n": 1}{}',
    b'{"n": 1}\n{"n": 2}', b'{"n": 1.5}', b'{"n": "x"}', b'{"n": 9223372036854775808}', b'{"s": 1}', b'{"s": "a\nb"}',
    b'{"s": "\xff"}', b'{"s": "a" "b"}', b'{"t": "soon"}', b'{"t": "300000-01-01T00:00:00Z"}', b'{"t": 1e300}',
    b'{"d": 1e999}', b'{"n": 1,}', b'{"s": "open}', b'[{"n": 1}', b'{"n": [1}]', b"\x00", b'{"n": 1}\x00',
    b'{"n":\x0b1}', b'\x0c{"n": 1}',
]  # fmt: skip
NULLS = (None, None, None, None)


def decode(values, on_error="null"):
    batch = pa.record_batch({"offset": pa.array(range(len(values))), "value": pa.array(values, pa.binary())})
    decoded = json_values(SCHEMA, on_error=on_error).decode(batch)
    assert decoded.schema.types[1:] == [pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.float64()]
    assert decoded.column("offset").to_pylist() == [*range(len(values))]
    columns = [decoded.column(name) for name in ("n", "s", "t", "d")]
    columns[2] = columns[2].cast(pa.int64())
    return [*zip(*(column.to_pylist() for column in columns), strict=True)]


@pytest.mark.parametrize("value", BAD)
def test_a_bad_value_alone_is_null_and_its_neighbours_are_not(value):
    good, row = next(iter(GOOD.items()))
    assert decode([value]) == [NULLS]
    assert decode([good, value, good]) == [row, NULLS, row]
    assert decode([value, None, good, value]) == [NULLS, NULLS, row, NULLS]


def test_good_values_are_decoded():
    assert decode([*GOOD], "fail") == decode([*GOOD]) == [*GOOD.values()]
    assert decode([]) == []
    assert decode([None, None]) == [NULLS, NULLS]


@pytest.mark.parametrize("value", BAD)
def test_a_bad_value_fails_the_job_by_default(value):
    with pytest.raises(RaykaError) as refused:
        decode([b"{}", value], "fail")
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("seed", range(20))
def test_rows_do_not_depend_on_where_pieces_end(seed):
    chance = random.Random(seed)
    values = chance.choices([*GOOD, *BAD, None], k=chance.randint(1, 60))
    whole = decode(values)
    assert whole == [row for value in values for row in decode([value])]
    cut = chance.randint(0, len(values))
    assert whole == decode(values[:cut]) + decode(values[cut:])


def test_a_value_may_be_longer_than_the_parts_in_which_a_parser_reads():
    long = "x" * 3_000_000
    values = [b'{"n": 1}', json.dumps({"n": 2, "s": long}).encode(), b"no json", b'{"n": 3}']
    assert [row[:2] for row in decode(values)] == [(1, None), (2, long), (None, None), (3, None)]


def test_many_values_with_few_bad_ones():
    values = [json.dumps({"n": n}).encode() for n in range(20_000)]
    values[7], values[13_000] = b'{"n": 1} {"n": 2}', b'{"n": "x"}'
    decoded = [row[0] for row in decode(values)]
    assert decoded == [None if n in (7, 13_000) else n for n in range(20_000)]
