"""A Spark driver that streams a topic into Parquet, to be killed: `ADDRESS TOPIC CHECKPOINT OUTPUT MAX_OFFSETS`.

An OUTPUT of the form `topic:NAME` is a topic, and `delta:PATH` a Delta table. The driver says "ready" when Spark has
started, starts when it gets a line, says when each batch begins and when it is written, and ends when nothing is left.
If the line is the number of a batch, it waits for another line when that batch is written.
"""

from __future__ import annotations

import sys

import ray
from pyspark.sql import DataFrame

import rayka.spark
from rayka.spark import delta_settings, delta_sink, parquet_sink, stream_topic, topic_sink


def main() -> None:
    """Run the stream to the end of the topic."""
    address, topic, checkpoint, output, max_offsets = sys.argv[1:]
    ray.init(address=address, log_to_driver=False)
    settings = {"spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "2"}
    kind, _, name = output.partition(":")
    if kind == "delta":
        settings |= delta_settings()
    spark = rayka.spark.session(executor_cores=1, executor_memory="600m", configs=settings)
    print("ready", flush=True)
    waits_in = sys.stdin.readline().strip()
    sinks = {"topic": topic_sink, "delta": delta_sink}
    write = sinks[kind](name) if kind in sinks else parquet_sink(output)

    def sink(frame: DataFrame, batch_id: int) -> None:
        print(f"begin {batch_id}", flush=True)
        write(frame, batch_id)
        print(f"batch {batch_id}", flush=True)
        if str(batch_id) == waits_in:
            sys.stdin.readline()

    with stream_topic(
        spark, topic, checkpoint=checkpoint, sink=sink, max_offsets_per_trigger=int(max_offsets)
    ) as stream:
        stream.process_available()
    rayka.spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main()
