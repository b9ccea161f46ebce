"""Spark's own Kafka source and sink, in local mode: `BOOTSTRAP SOURCE SINK CHECKPOINT JARS`; prints JSON.

Reads SOURCE as a batch, copies it to SINK as a batch, and copies it again with Structured Streaming in two
runs that share a checkpoint; before the second run 100 more records are written by the batch sink.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    """Do it all."""
    bootstrap, source, sink, checkpoint, jars = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "700m")
        .getOrCreate()
    )
    kafka = {"kafka.bootstrap.servers": bootstrap}

    def read() -> DataFrame:
        return spark.read.format("kafka").options(**kafka, subscribe=source, startingOffsets="earliest").load()

    def write(frame: DataFrame, topic: str) -> None:
        frame.selectExpr("key", "value").write.format("kafka").options(**kafka, topic=topic).save()

    def stream() -> None:
        records = spark.readStream.format("kafka").options(
            **kafka, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="400"
        )
        query = (
            records.load()
            .selectExpr("key", "value")
            .writeStream.format("kafka")
            .options(**kafka, topic=sink, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    total = read().selectExpr("count(*)", "sum(length(value))", "sum(offset)").first()
    write(read(), sink)
    stream()
    more = spark.range(100).selectExpr("cast(id as string) as key", "concat('more ', id) as value")
    write(more, source)
    stream()
    print(json.dumps(list(total or [])))


if __name__ == "__main__":
    main()
