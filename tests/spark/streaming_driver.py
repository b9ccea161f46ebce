"""A Spark driver that streams a topic into Parquet, to be killed: `ADDRESS TOPIC CHECKPOINT OUTPUT MAX_OFFSETS`.

It says "ready" when Spark has started and a line for each batch that is done, and ends when there is nothing new.
"""

from __future__ import annotations

import sys

import ray

import rayka.spark
from rayka.spark import parquet_sink, stream_topic


def main() -> None:
    """Run the stream to the end of the topic."""
    address, topic, checkpoint, output, max_offsets = sys.argv[1:]
    ray.init(address=address, log_to_driver=False)
    settings = {"spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "2"}
    spark = rayka.spark.session(executor_cores=1, executor_memory="600m", configs=settings)
    print("ready", flush=True)
    stream = stream_topic(
        spark, topic, checkpoint=checkpoint, sink=parquet_sink(output), max_offsets_per_trigger=int(max_offsets)
    )
    with stream:
        for progress in stream.process_available():
            print(progress, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
