"""Whose a Delta table is, when others create it, delete it or take it at the same moment as a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import delta_sink
from rayka.spark.running import RunningBatch, run_batch

PATH = "/data/clicks"
_PROPERTY = re.compile("'([^']+)' = '([^']+)'")


class ProtocolChangedException(Exception):
    """What Delta raises in a writer when another has created the table since it looked."""


class Table:
    """A Delta table: its properties, and of each transaction the rows and the metadata."""

    def __init__(self, number: int, properties: dict[str, str]) -> None:
        self.id = f"id-{number}"
        self.properties = properties
        self.transactions: dict[tuple[str, str], str] = {}
        self.rows: list[str] = []


class Spark:
    """Delta's SQL for one path, as far as the sink uses it. `before` is called ahead of each statement."""

    def __init__(self) -> None:
        self.table: Table | None = None
        self.made = 0
        self.before: Callable[[str], object] = lambda statement: None

    def make(self, properties: dict[str, str]) -> Table:
        self.made += 1
        self.table = Table(self.made, properties)
        return self.table

    def sql(self, statement: str) -> Any:
        was_there = self.table is not None
        self.before(statement)
        properties = dict(_PROPERTY.findall(statement))
        if statement.startswith("CREATE TABLE IF NOT EXISTS"):
            if self.table is not None and not was_there:
                raise ProtocolChangedException("multiple writers are writing to an empty directory")
            return self.table or self.make(properties)
        assert self.table is not None, "not a Delta table"
        if statement.startswith("DESCRIBE DETAIL"):
            return self.shown((self.table.id, dict(self.table.properties)))
        if statement.startswith("DESCRIBE HISTORY"):
            return self.shown(*((metadata,) for metadata in self.table.transactions.values()))
        if "UNSET" in statement:
            (name,) = re.findall(r"\('(.*)'\)", statement)
            return self.table.properties.pop(name)
        return self.table.properties.update(properties)

    def shown(self, *rows: tuple[Any, ...]) -> Any:
        collected = SimpleNamespace(collect=lambda: list(rows))
        return SimpleNamespace(select=lambda *names: collected)


class Rows:
    """A frame of a batch, and the writer of its rows."""

    def __init__(self, spark: Spark, rows: str) -> None:
        self.sparkSession = spark
        self.columns = ["value"]
        schema = SimpleNamespace(toDDL=lambda: "value BINARY")
        self._jdf = SimpleNamespace(schema=lambda: schema)
        self._rows = rows
        self.write = self
        self.format = self.mode = lambda name: self

    def options(self, **given: str) -> Rows:
        self._options = given
        return self

    def save(self, path: str) -> None:
        table = self.sparkSession.table or self.sparkSession.make({})
        transaction = self._options["txnAppId"], self._options["txnVersion"]
        if transaction not in table.transactions:
            table.transactions[transaction] = self._options["userMetadata"]
            table.rows.append(self._rows)


@contextmanager
def batch(stream: str) -> Iterator[None]:
    with run_batch(RunningBatch(stream, ())):
        yield


def write(spark: Spark, stream: str, batch_id: int, rows: str, sink: Any = None) -> None:
    with batch(stream):
        (sink or delta_sink(PATH))(Rows(spark, rows), batch_id)


def rows_of(spark: Spark) -> list[str]:
    assert spark.table is not None
    return spark.table.rows


def test_a_table_that_was_deleted_is_created_again_for_its_stream() -> None:
    spark, sink = Spark(), delta_sink(PATH)
    write(spark, "s", 0, "first", sink)
    spark.table = None
    write(spark, "s", 1, "second", sink)
    assert rows_of(spark) == ["second"]
    with pytest.raises(RaykaError, match=r"another stream \(s, the checkpoint is of other\)"):
        write(spark, "other", 0, "third")


def test_a_stream_refuses_a_table_that_another_stream_created_in_place_of_its_own() -> None:
    spark, sink = Spark(), delta_sink(PATH)
    write(spark, "s", 0, "first", sink)
    spark.table = None
    write(spark, "other", 0, "second")
    with pytest.raises(RaykaError, match=r"another stream \(other, the checkpoint is of s\)") as refused:
        write(spark, "s", 1, "third", sink)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert rows_of(spark) == ["second"]


def test_frames_are_numbered_across_sinks_after_a_table_was_created_again() -> None:
    spark, before = Spark(), delta_sink(PATH)
    write(spark, "s", 0, "first", before)
    spark.table = None
    with batch("s"):
        delta_sink(PATH)(Rows(spark, "second"), 1)
        before(Rows(spark, "third"), 1)
    assert rows_of(spark) == ["second", "third"]


def test_a_batch_whose_first_frame_was_deleted_with_the_table_comes_again() -> None:
    """A frame behind it would get its number, and be in the table twice when the batch comes again."""
    spark, sink = Spark(), delta_sink(PATH)
    with batch("s"):
        sink(Rows(spark, "one"), 0)
        spark.table = None
        with pytest.raises(RaykaError, match="was made again during the batch"):
            sink(Rows(spark, "two"), 0)
    with batch("s"):
        for rows in ("one", "two"):
            sink(Rows(spark, rows), 0)
    assert rows_of(spark) == ["one", "two"]


@pytest.mark.parametrize(
    ("is_there", "moment"), [*((False, moment) for moment in range(3)), *((True, moment) for moment in range(4))]
)
def test_a_table_that_two_streams_claim_at_once_belongs_to_one(is_there: bool, moment: int) -> None:
    """The other one comes before each statement of the first; it is a new table, or one that belongs to nobody."""
    spark, statements = Spark(), list[str]()
    if is_there:
        spark.make({})

    def before(statement: str) -> None:
        statements.append(statement)
        if len(statements) == moment + 1:
            spark.before = lambda other: None
            begin("other")

    def begin(stream: str) -> None:
        try:
            write(spark, stream, 0, f"of {stream}")
        except RaykaError as error:
            refused.append(error.code)

    refused: list[ErrorCode] = []
    spark.before = before
    begin("s")
    assert len(statements) > moment
    assert refused == [ErrorCode.INVALID_REQUEST]
    assert spark.table is not None
    (owner,) = {value for name, value in spark.table.properties.items() if name.startswith("rayka.")}
    assert rows_of(spark) == [f"of {owner}"]


def test_an_error_of_creating_the_table_is_raised() -> None:
    spark = Spark()

    def fail(statement: str) -> None:
        raise PermissionError("the bucket is read-only")

    spark.before = fail
    with pytest.raises(PermissionError, match="read-only"):
        write(spark, "s", 0, "ours")
