"""Streams a topic into Parquet files in small batches, for a test that kills it.

The arguments are TOPIC BOOTSTRAP DIRECTORY MASTER MAX_OFFSETS.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession


def main(topic: str, bootstrap: str, directory: str, master: str, max_offsets: str) -> None:
    """Process everything that there is now."""
    builder: Any = SparkSession.builder
    settings = {"spark.ui.enabled": "false", "spark.executor.memory": "700m"}
    spark = builder.master(master).config(map=settings).getOrCreate()
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": max_offsets}
    stream = spark.readStream.format("rayka").options(**options).option("kafka.bootstrap.servers", bootstrap).load()
    writer = stream.select("partition", "offset").writeStream.format("parquet").option("path", f"{directory}/out")
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
