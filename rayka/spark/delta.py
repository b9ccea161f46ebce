"""Topics as Delta tables: each batch of a stream is one commit of a table, exactly once.

A commit has the stream's id and the batch's number as Delta's transaction identifier. Delta skips a write whose number
its table has already, so a batch that comes again after a crash changes nothing. The offsets that the batch has read
are in the commit's `userMetadata`, which `DESCRIBE HISTORY` shows: a batch that was skipped must have the same ones.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.running import NO_TOPIC_IDS, BatchIdentity, Sink, batch_of, frames_of

logger = logging.getLogger(__name__)

_PACKAGES: Mapping[str, str] = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""The release of Delta for each version of Spark that rayka runs with."""
_OWNER = "rayka.stream_id"
_DELETED = "_rayka_deleted"
_LAST_COMMITS = 10
"""How many commits are searched for those of a batch before the whole history of the table is."""
_CLAIM_RETRIES = 2
_SCHEME = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*:/")
_UPSERT_COLUMNS = ("key", "value", "offset")
_SEVERAL_ROWS = "The function has made several rows of a key, and the table has one for each key"
_NO_KEY = "A record without a key can't be upserted: it has no row that it replaces"


def delta_settings() -> dict[str, str]:
    """Spark's settings for Delta tables: the `configs` of `session`, or `SparkSession.builder.config(map=...)`.

    Spark downloads Delta from Maven Central when it starts, and keeps it. Raises INVALID_CONFIG if there is no release
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
    """Write each batch of a stream, transformed, as one commit of the Delta table at `path`: exactly once.

    The function is for `stream_topic` and for Structured Streaming's `foreachBatch`. The session needs
    `delta_settings()`. Rows are appended.

    With `key`, which is `"key"` or an expression such as `"cast(key as string)"`, rows are upserted. The table has a
    column `key` and the last record of each key; a record without a value deletes the row. `transform` then gets the
    last record of each key, with the expression as its key, and returns one row for it that keeps this column. If it
    returns none, the table keeps its row. All records of a key must be in one partition.

    Each call writes a frame of its own of the batch, so a function for `foreachBatch` may write several to one table.
    It must call the sink in the same order when the batch comes again, and let the batch fail if a call fails.

    The first batch creates the table if it does not exist. Delta joins small files into large ones once there are 50
    (`delta.autoOptimize.autoCompact`). A table belongs to the stream that writes to it first. Another stream, or one
    whose checkpoint was deleted, would append records that the table already has: its first batch raises
    INVALID_REQUEST.
    """
    text = os.fspath(path)
    return DeltaSink(text if _SCHEME.match(text) else os.fspath(Path(text).absolute()), transform, key)


class Commit(NamedTuple):
    """What one commit of a table has of a stream: a frame of a batch. Most batches have one frame."""

    batch: BatchIdentity
    frame: int

    def options(self) -> dict[str, str]:
        """The commit as options of a DataFrame's writer; `DESCRIBE HISTORY` shows the metadata."""
        stream_id, batch_id, offsets, topic_ids = self.batch
        described: dict[str, Any] = {"stream_id": stream_id, "batch_id": batch_id, "offsets": offsets}
        if topic_ids:
            described["topic_ids"] = dict(topic_ids)
        if self.frame:
            described["frame"] = self.frame
        return {
            "txnAppId": f"{self.batch.stream_id}/{self.frame}" if self.frame else self.batch.stream_id,
            "txnVersion": str(self.batch.batch_id),
            "userMetadata": json.dumps(described),
        }

    def settings(self) -> dict[str, str]:
        """The commit as settings of a session, from which SQL statements take it."""
        names = {"txnAppId": "write", "txnVersion": "write", "userMetadata": "commitInfo"}
        return {f"spark.databricks.delta.{names[name]}.{name}": value for name, value in self.options().items()}

    def is_described_by(self, metadata: Mapping[str, Any]) -> bool:
        """Whether this is the metadata of the commit, with any offsets."""
        described = metadata.get("stream_id"), metadata.get("batch_id"), metadata.get("frame", 0)
        return described == (self.batch.stream_id, self.batch.batch_id, self.frame)


class DeltaSink:
    """See `delta_sink`."""

    def __init__(self, path: str, transform: Callable[[DataFrame], DataFrame] | None, key: str | Column | None) -> None:
        self._path = path
        self._transform = transform
        self._key = key

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a frame of a batch, unless the table has it. Raises INVALID_REQUEST if it has it with other offsets."""
        batch = batch_of(df, batch_id)
        if batch is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, 'delta_sink is for streams: write a batch with format("delta")')
        frames = frames_of(df, batch)
        with frames.attempt(f"the path {self._path}"):
            rows = self._transformed(df) if self._key is None else self._upserts(df, self._key)
            table_id = self._claim_table(rows, batch.stream_id)
            frames.require_same(f"the table {self._path}", table_id)
            with frames.next(f"the Delta table {table_id}") as number:
                self._commit(rows, Commit(batch, number))

    def _commit(self, rows: DataFrame, commit: Commit) -> None:
        if self._key is None:
            rows.write.format("delta").mode("append").options(**commit.options()).save(self._path)
        else:
            self._merge(rows, commit)
        found = self._metadata(rows.sparkSession, commit)
        place, topic_ids = f"Table {self._path}", found.get("topic_ids", NO_TOPIC_IDS)
        commit.batch.require_same(found.get("offsets"), place, topic_ids)

    def _metadata(self, spark: SparkSession, commit: Commit) -> Mapping[str, Any]:
        """The metadata of a commit: first of the last commits, then of the whole history. Empty if it is not there."""
        for limit in (f"LIMIT {_LAST_COMMITS}", ""):
            history = spark.sql(f"DESCRIBE HISTORY {table_at(self._path)} {limit}").select("userMetadata").collect()
            for (metadata,) in history:
                if commit.is_described_by(found := _parsed(metadata)):
                    return found
        return {}

    def _transformed(self, df: DataFrame) -> DataFrame:
        return df if self._transform is None else self._transform(df)

    def _upserts(self, df: DataFrame, key: str | Column) -> DataFrame:
        """A row for each key: what it is now, or that it was deleted."""
        if missing := [name for name in _UPSERT_COLUMNS if name not in df.columns]:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Upserts need the columns {missing} of the topic")
        given = F.expr(key) if isinstance(key, str) else key
        keyed = df.withColumn("key", given).withColumn("key", F.coalesce("key", F.raise_error(F.lit(_NO_KEY))))
        last = keyed.groupBy("key").agg(F.max_by(F.struct(*keyed.columns), "offset").alias("last")).select("last.*")
        rows = self._transformed(last.where("value is not null"))
        if "key" not in rows.columns:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Upserted rows need the column key, and have {rows.columns}")
        if _DELETED in rows.columns:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Upserted rows can't have a column {_DELETED}")
        deleted = last.where("value is null").select("key")
        is_alone = F.count("*").over(Window.partitionBy("key")) == 1
        kept = F.when(is_alone, F.lit(False)).otherwise(F.raise_error(F.lit(_SEVERAL_ROWS)).cast("boolean"))
        return rows.withColumn(_DELETED, kept).unionByName(
            deleted.withColumn(_DELETED, F.lit(True)), allowMissingColumns=True
        )

    def _merge(self, rows: DataFrame, commit: Commit) -> None:
        """Merge in a session of its own, so that the settings of the commit are of no other statement."""
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

    def _claim_table(self, rows: DataFrame, stream_id: str) -> str:
        """Make sure that the table exists and belongs to this stream; return its id.

        This is done for every frame, because the table may be deleted and created again while the sink is in use. If
        two streams claim it at the same moment, Delta fails one of them, which then sees the table's owner on its next
        try. Raises INVALID_REQUEST if the table belongs to another stream.
        """
        for _ in range(_CLAIM_RETRIES):
            try:
                return self._claim_table_once(rows, stream_id)
            except RaykaError:
                raise
            except Exception as error:
                logger.info("reading table %s again: %s", self._path, error)
        return self._claim_table_once(rows, stream_id)

    def _claim_table_once(self, rows: DataFrame, stream_id: str) -> str:
        spark, table = rows.sparkSession, table_at(self._path)
        columns = rows if self._key is None else rows.drop(_DELETED)
        spark.sql(create_statement(self._path, _ddl(columns), stream_id))
        table_id, owners = self._id_and_owners(spark)
        if not owners:
            # A property of its own for each stream: two that find the table at the same moment see each other's.
            claim = f"{_OWNER}.{stream_id}"
            spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{claim}' = '{stream_id}')")
            table_id, owners = self._id_and_owners(spark)
            if owners != {stream_id}:
                spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ('{claim}')")
        if owners != {stream_id}:
            others = ", ".join(sorted(owners - {stream_id}))
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"Table {self._path} has the batches of another stream ({others}, the checkpoint is of {stream_id}): "
                "use the checkpoint that belongs to the table, or another table",
            )
        return table_id

    def _id_and_owners(self, spark: SparkSession) -> tuple[str, set[str]]:
        """The id of the table, and the streams that say it is theirs."""
        detail = spark.sql(f"DESCRIBE DETAIL {table_at(self._path)}").select("id", "properties")
        ((table_id, properties),) = detail.collect()
        return table_id, {owner for name, owner in properties.items() if f"{name}.".startswith(f"{_OWNER}.")}


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


def _parsed(metadata: str | None) -> dict[str, Any]:
    """The metadata of a commit; empty if the commit is not of a stream."""
    try:
        found = json.loads(metadata or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _columns(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if name != _DELETED]


def _ddl(rows: Any) -> str:
    return str(rows._jdf.schema().toDDL())


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
