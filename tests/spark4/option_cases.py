"""Queries with each option of Spark's Kafka source, and what they answer.

`kafka_answers.json` has the answers of Spark's own Kafka source on PySpark 3.5. This program writes it anew:
`JARS BOOTSTRAP FILE`, with a broker whose topics `fill_topics` has made.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

START_MS = 1_700_000_000_000
ANSWERS = Path(__file__).with_name("kafka_answers.json")
REFUSED = "refused"
STREAM_FLAG = "stream"
"""A case with this option is a streaming query over what there is: the rows of each of its batches are the answer."""
COUNT = 90
AT = START_MS + 1000 * 30
AFTER = START_MS + 10**9
STREAM = {STREAM_FLAG: "yes", "subscribe": "options-t", "startingOffsets": "earliest"}


def places(*offsets: int) -> str:
    """An offset or a time for each partition."""
    return json.dumps({"options-t": dict(zip("012", offsets, strict=True))})


CASES = {
    "subscribe": {"subscribe": "options-t"},
    "subscribe several": {"subscribe": "options-t, options-u"},
    "subscribePattern": {"subscribePattern": "^options-.*"},
    "subscribePattern matches a part of the name": {"subscribePattern": "ptions-(cut|t|u)$"},
    "assign": {"assign": '{"options-t": [0, 2], "options-u": [1]}'},
    "assign of a partition that is not there": {"assign": '{"options-t": [7]}'},
    "two ways to choose": {"subscribe": "options-t", "assign": '{"options-t": [0]}'},
    "no way to choose": {},
    "a topic that is not there": {"subscribe": "options-none"},
    "startingOffsets": {"subscribe": "options-t", "startingOffsets": places(3, -2, 29)},
    "startingOffsets latest in a batch": {"subscribe": "options-t", "startingOffsets": "latest"},
    "startingOffsets without a partition": {"subscribe": "options-t", "startingOffsets": '{"options-t": {"0": 3}}'},
    "startingOffsets that is not JSON": {"subscribe": "options-t", "startingOffsets": "soon"},
    "endingOffsets": {"subscribe": "options-t", "endingOffsets": places(3, -1, 0)},
    "endingOffsets earliest": {"subscribe": "options-t", "endingOffsets": "earliest"},
    "startingTimestamp": {"subscribe": "options-t", "startingTimestamp": str(AT)},
    "startingTimestamp goes first": {
        "subscribe": "options-t",
        "startingTimestamp": str(AT),
        "startingOffsetsByTimestamp": places(START_MS, START_MS, START_MS),
        "startingOffsets": places(5, 5, 5),
    },
    "startingTimestamp after the end": {"subscribe": "options-t", "startingTimestamp": str(AFTER)},
    "startingOffsetsByTimestampStrategy": {
        "subscribe": "options-t",
        "startingTimestamp": str(AFTER),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "startingOffsetsByTimestamp": {
        "subscribe": "options-t",
        "startingOffsetsByTimestamp": places(AT, START_MS, AT + 1),
    },
    "endingTimestamp": {"subscribe": "options-t", "endingTimestamp": str(AT)},
    "endingTimestamp after the end": {"subscribe": "options-t", "endingTimestamp": str(AFTER)},
    "endingOffsetsByTimestamp": {"subscribe": "options-t", "endingOffsetsByTimestamp": places(AT, AFTER, START_MS)},
    "failOnDataLoss": {"subscribe": "options-cut", "startingOffsets": '{"options-cut": {"0": 0, "1": 0, "2": 0}}'},
    "failOnDataLoss false": {
        "subscribe": "options-cut",
        "startingOffsets": '{"options-cut": {"0": 0, "1": 0, "2": 0}}',
        "failOnDataLoss": "false",
    },
    "minPartitions": {"subscribe": "options-t", "minPartitions": "6"},
    "minPartitions of fewer": {"subscribe": "options-t", "minPartitions": "2"},
    "includeHeaders": {"subscribe": "options-u", "includeHeaders": "true"},
    "kafka.isolation.level": {"subscribe": "options-t", "kafka.isolation.level": "read_committed"},
    "groups and deserializers": {"subscribe": "options-t", "kafka.value.deserializer": "x"},
    "patience": {
        "subscribe": "options-t",
        "kafkaConsumer.pollTimeoutMs": "5000",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "10",
    },
    "stream": {**STREAM},
    "stream with maxOffsetsPerTrigger": {**STREAM, "maxOffsetsPerTrigger": "30"},
    "stream with minOffsetsPerTrigger": {
        **STREAM,
        "minOffsetsPerTrigger": "20",
        "maxOffsetsPerTrigger": "60",
        "maxTriggerDelay": "1s",
    },
    "stream from offsets": {**STREAM, "startingOffsets": places(3, -1, -2)},
    "stream from a timestamp": {**STREAM, "startingTimestamp": str(AT)},
    "stream that ends": {**STREAM, "endingOffsets": "latest"},
    "stream with minPartitions": {**STREAM, "minPartitions": "6"},
}


def fill_topics(cluster: Any, fill: Any) -> None:
    """The topics of the cases; the beginning of one is deleted."""
    for topic, count in (("options-t", COUNT), ("options-u", 12), ("options-cut", 30)):
        cluster.admin().create_topic(topic, 3)
        fill(cluster, topic, count)
    cluster.admin().delete_records({("options-cut", 0): 4})


def answer(spark: Any, source: str, bootstrap: str, options: Mapping[str, str]) -> Any:
    """The places of all rows and the number of splits, those of each batch of a stream, or `REFUSED`."""
    given = {"kafka.bootstrap.servers": bootstrap, **options}
    is_stream = given.pop(STREAM_FLAG, None)
    try:
        return _stream(spark, source, given) if is_stream else _batch(spark, source, given)
    except Exception:  # Spark's errors have no class in common
        return REFUSED


def _batch(spark: Any, source: str, options: Mapping[str, str]) -> Any:
    frame = spark.read.format(source).options(**options).load()
    shown = ["to_json(headers) as headers"] if "headers" in frame.columns else []
    rows = frame.selectExpr("topic", "partition", "offset", *shown, "spark_partition_id() as split").collect()
    found = {"rows": summary(rows), "splits": len({row["split"] for row in rows})}
    return {**found, "headers": sorted({row["headers"] for row in rows} - {None})} if shown else found


def summary(rows: Iterable[Any]) -> dict[str, list[int]]:
    """The first and the last offset of each partition, and how many different ones there are."""
    offsets: dict[str, set[int]] = {}
    for row in rows:
        offsets.setdefault(f"{row['topic']}-{row['partition']}", set()).add(row["offset"])
    return {name: [min(found), max(found), len(found)] for name, found in sorted(offsets.items())}


def _stream(spark: Any, source: str, options: Mapping[str, str]) -> Any:
    batches: list[Any] = []

    def sink(frame: Any, batch_id: int) -> None:
        rows = summary(frame.select("topic", "partition", "offset").collect())
        batches.extend([rows] if rows else [])

    with tempfile.TemporaryDirectory() as directory:
        writer = spark.readStream.format(source).options(**options).load().writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", directory).trigger(availableNow=True).start()
        query.awaitTermination(300)
    return {"batches": batches}


def main(jars: str, bootstrap: str, path: str) -> None:
    """Write the answers of Spark's own Kafka source."""
    from pyspark.sql import SparkSession

    settings = {"spark.jars": jars, "spark.ui.enabled": "false", "spark.driver.memory": "700m"}
    builder: Any = SparkSession.builder
    spark = builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    answers = {name: answer(spark, "kafka", bootstrap, options) for name, options in CASES.items()}
    lines = [f"\n{json.dumps(name)}: {json.dumps(found)}" for name, found in answers.items()]
    Path(path).write_text("{" + ",".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
