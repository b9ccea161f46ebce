"""Topics as Delta tables: each batch of a stream is one commit of a table, exactly once.

A commit has the stream's id and the batch's number as Delta's transaction identifier. Delta skips a write whose number
its table has already, so a batch that comes again after a crash changes nothing. The offsets that the batch has read
are in the commit's `userMetadata`, which `DESCRIBE HISTORY` shows.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark.running import Sink, running_batch

_PACKAGES: Mapping[str, str] = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.1",
}
"""The release of Delta for each version of Spark that rayka runs with."""
_OWNER = "rayka.stream_id"
_DELETED = "_deleted"
_SCHEME = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*:/")
_NEEDED = ("key", "value", "offset")
_NO_KEY = "A record without a key can't be upserted: it has no row that it replaces"


def delta_settings() -> dict[str, str]:
    """Spark's settings for Delta tables: the `configs` of `session`, or `SparkSession.builder.config(map=...)`.

    Spark fetches Delta from Maven Central when it starts, and keeps it. Raises INVALID_CONFIG if there is no release
    of Delta for this PySpark.
    """
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in _PACKAGES:
        known = " or ".join(_PACKAGES)
        raise RaykaError(ErrorCode.INVALID_CONFIG, f"Delta tables need PySpark {known}; this is {pyspark.__version__}")
    return {
        "spark.jars.packages": _PACKAGES[version],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def delta_sink(
    path: str | os.PathLike[str],
    transform: Callable[[DataFrame], DataFrame] | None = None,
    *,
    key: str | Column | None = None,
) -> Sink:
    """Each batch of a stream, transformed, as a commit of the Delta table at `path`: exactly once.

    The function is for `stream_topic` and for Structured Streaming's `foreachBatch`. The session needs
    `delta_settings()`. Rows are appended. With `key`, which is `"key"` or an expression such as
    `"cast(key as string)"`, they are upserted: the table has a column `key`, with the last record of each key, and a
    record without a value deletes the row. Then `transform` is given the last record of each key, whose key is that
    of the expression, and keeps that column. All records of a key must be in one partition.

    The first batch creates the table, unless it is there. Delta rewrites small files as large ones from 50
    on (`delta.autoOptimize.autoCompact`). A table belongs to the stream that writes to it first. Another
    stream, or one whose checkpoint was deleted, would append records that are there: its first batch raises
    INVALID_REQUEST.
    """
    text = os.fspath(path)
    return DeltaSink(text if _SCHEME.match(text) else os.fspath(Path(text).absolute()), transform, key)


class Commit(NamedTuple):
    """A batch, and what it has read if that is known."""

    stream_id: str
    batch_id: int
    ranges: Sequence[OffsetRange]

    def metadata(self) -> str:
        """What `DESCRIBE HISTORY` shows: the offset up to which each partition has been read."""
        offsets: dict[str, dict[str, int]] = {}
        for each in self.ranges:
            offsets.setdefault(each.topic, {})[str(each.partition)] = each.end_offset
        return json.dumps({"stream_id": self.stream_id, "batch_id": self.batch_id, "offsets": offsets})

    def options(self) -> dict[str, str]:
        """For the writer of a DataFrame."""
        return {
            "txnAppId": self.stream_id,
            "txnVersion": str(self.batch_id),
            "userMetadata": self.metadata(),
        }

    def settings(self) -> dict[str, str]:
        """The same for statements, which take it from their session."""
        names = {"txnAppId": "write", "txnVersion": "write", "userMetadata": "commitInfo"}
        return {f"spark.databricks.delta.{names[name]}.{name}": value for name, value in self.options().items()}


class DeltaSink:
    """See `delta_sink`."""

    def __init__(self, path: str, transform: Callable[[DataFrame], DataFrame] | None, key: str | Column | None) -> None:
        self._path = path
        self._transform = transform
        self._key = key
        self._owner: str | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch, unless the table has it."""
        commit = _commit(df, batch_id)
        rows = self._transformed(df) if self._key is None else self._upserts(df, self._key)
        self._require_owner(rows, commit.stream_id)
        if self._key is None:
            rows.write.format("delta").mode("append").options(**commit.options()).save(self._path)
        else:
            self._merge(rows, commit)

    def _transformed(self, df: DataFrame) -> DataFrame:
        return df if self._transform is None else self._transform(df)

    def _upserts(self, df: DataFrame, key: str | Column) -> DataFrame:
        """A row for each key: what it is now, or that it was deleted."""
        if missing := [name for name in _NEEDED if name not in df.columns]:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Upserts need the columns {missing} of the topic")
        given = F.expr(key) if isinstance(key, str) else key
        keyed = df.withColumn("key", given).withColumn("key", F.coalesce("key", F.raise_error(F.lit(_NO_KEY))))
        last = keyed.groupBy("key").agg(F.max_by(F.struct(*keyed.columns), "offset").alias("last")).select("last.*")
        rows = self._transformed(last.where("value is not null"))
        if "key" not in rows.columns:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Upserted rows need the column key, and have {rows.columns}")
        deleted = last.where("value is null").select("key")
        return rows.withColumn(_DELETED, F.lit(False)).unionByName(
            deleted.withColumn(_DELETED, F.lit(True)), allowMissingColumns=True
        )

    def _merge(self, rows: DataFrame, commit: Commit) -> None:
        """The settings of the commit are those of a session that nobody else has."""
        view = f"rayka_batch_{uuid.uuid4().hex}"
        spark: Any = rows.sparkSession
        rows.createOrReplaceTempView(view)
        try:
            own = spark._jsparkSession.cloneSession()
            for name, value in commit.settings().items():
                own.conf().set(name, value)
            own.sql(merge_statement(self._path, view, _columns(rows)))
        finally:
            spark.catalog.dropTempView(view)

    def _require_owner(self, rows: DataFrame, stream_id: str) -> None:
        """Make sure that the table is there, and that it belongs to this stream. Raises INVALID_REQUEST."""
        if self._owner == stream_id:
            return
        spark, table = rows.sparkSession, table_at(self._path)
        spark.sql(create_statement(self._path, _ddl(rows.drop(_DELETED)), stream_id))
        (properties,) = spark.sql(f"DESCRIBE DETAIL {table}").select("properties").collect()[0]
        owner = properties.get(_OWNER)
        if owner is None:
            spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{_OWNER}' = '{stream_id}')")
        elif owner != stream_id:
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"Table {self._path} has the batches of another stream ({owner}, the checkpoint is of {stream_id}): "
                "use the checkpoint that belongs to the table, or another table",
            )
        self._owner = stream_id


def table_at(path: str) -> str:
    """The name of the table at a path in SQL."""
    return f"delta.{_quoted(path)}"


def create_statement(path: str, ddl: str, stream_id: str) -> str:
    """Create the table of a stream, unless it is there."""
    properties = f"'{_OWNER}' = '{stream_id}', 'delta.autoOptimize.autoCompact' = 'true'"
    return f"CREATE TABLE IF NOT EXISTS {table_at(path)} ({ddl}) USING delta TBLPROPERTIES ({properties})"


def merge_statement(path: str, view: str, columns: Sequence[str]) -> str:
    """Put the rows of a view in place of those with their keys; delete those that the view says were deleted."""
    names = [_quoted(name) for name in columns]
    changes = ", ".join(f"t.{name} = s.{name}" for name in names)
    values = ", ".join(f"s.{name}" for name in names)
    return (
        f"MERGE INTO {table_at(path)} t USING {view} s ON t.key = s.key"
        f" WHEN MATCHED AND s.{_DELETED} THEN DELETE"
        f" WHEN MATCHED THEN UPDATE SET {changes}"
        f" WHEN NOT MATCHED AND NOT s.{_DELETED} THEN INSERT ({', '.join(names)}) VALUES ({values})"
    )


def _commit(df: DataFrame, batch_id: int) -> Commit:
    """Which stream's batch this is. Raises INVALID_REQUEST outside of a stream."""
    running = running_batch()
    if running is not None:
        return Commit(running.stream_id, batch_id, running.ranges)
    query_id = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise RaykaError(ErrorCode.INVALID_REQUEST, 'delta_sink is for streams: write a batch with format("delta")')
    return Commit(query_id, batch_id, ())


def _columns(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if name != _DELETED]


def _ddl(rows: Any) -> str:
    return str(rows._jdf.schema().toDDL())


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
