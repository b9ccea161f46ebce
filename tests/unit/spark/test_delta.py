"""What a Delta table is told of a batch: its number, what it has read, and how its rows are merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.delta import Commit, create_statement, delta_settings, delta_sink, merge_statement
from rayka.spark.running import BatchIdentity, RunningBatch, run_batch

BATCH = BatchIdentity("s", 7, {"clicks": {"0": [5, 9]}})


def test_statements_and_writers_identify_a_batch_in_the_same_way() -> None:
    metadata = '{"stream_id": "s", "batch_id": 7, "offsets": {"clicks": {"0": [5, 9]}}}'
    assert Commit(BATCH, 0).options() == {"txnAppId": "s", "txnVersion": "7", "userMetadata": metadata}
    assert Commit(BATCH, 0).settings() == {
        "spark.databricks.delta.write.txnAppId": "s",
        "spark.databricks.delta.write.txnVersion": "7",
        "spark.databricks.delta.commitInfo.userMetadata": metadata,
    }


def test_each_frame_of_a_batch_has_a_transaction_of_its_own() -> None:
    commits = [Commit(BATCH, number) for number in range(3)]
    assert [commit.options()["txnAppId"] for commit in commits] == ["s", "s/1", "s/2"]
    described = [json.loads(commit.options()["userMetadata"]) for commit in commits]
    assert [[commit.is_described_by(each) for each in described] for commit in commits] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_a_table_is_created_once_for_its_stream() -> None:
    assert create_statement("/data/a`b", "key BINARY", "s") == (
        "CREATE TABLE IF NOT EXISTS delta.`/data/a``b` (key BINARY) USING delta"
        " TBLPROPERTIES ('rayka.stream_id' = 's', 'delta.autoOptimize.autoCompact' = 'true')"
    )


def test_rows_are_merged_by_key_and_deleted_rows_removed() -> None:
    assert merge_statement("/data/t", "batch", ["key", "a b"]) == (
        "MERGE INTO delta.`/data/t` t USING batch s ON t.key = s.key WHEN MATCHED AND s._rayka_deleted THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET t.`key` = s.`key`, t.`a b` = s.`a b`"
        " WHEN NOT MATCHED AND NOT s._rayka_deleted THEN INSERT (`key`, `a b`) VALUES (s.`key`, s.`a b`)"
    )


def test_the_release_of_delta_fits_the_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.7")
    assert delta_settings()["spark.jars.packages"] == "io.delta:delta-spark_2.12:3.3.2"
    monkeypatch.setattr(pyspark, "__version__", "9.0.0")
    with pytest.raises(RaykaError, match=r"need PySpark 3\.5 or 4\.2; this is 9\.0\.0") as refused:
        delta_settings()
    assert refused.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("given", "path"),
    [("s3a://bucket/t", "s3a://bucket/t"), ("hdfs:/data/t", "hdfs:/data/t"), ("/data/t", "/data/t"), ("t", "{cwd}/t")],
)
def test_a_table_is_where_its_path_says(given: str, path: str) -> None:
    """Also in the file system that a scheme without a host names."""
    assert delta_sink(given)._path == path.format(cwd=Path.cwd())


def test_a_table_refuses_frames_after_one_that_could_not_be_made(tmp_path: Path) -> None:
    """It would get the number of that one, which is then left out when the batch comes again."""

    def fail(df: object) -> None:
        raise OSError("the network is down")

    with run_batch(RunningBatch("s", ())):
        with pytest.raises(OSError, match="the network is down"):
            delta_sink(tmp_path, fail)(None, 7)
        with pytest.raises(RaykaError, match="has failed: let the batch fail"):
            delta_sink(tmp_path)(None, 7)
