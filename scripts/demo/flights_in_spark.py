"""The demo's last step: Spark looks at what the demo wrote. `ADDRESS` is Ray's, by default the one on this machine.

Prints, as JSON, each airline's flights and the mean delay of their departures in minutes.
"""

from __future__ import annotations

import json
import sys

import ray
from pyspark.sql import functions as F  # noqa: N812

import rayka.spark

CARRIER, DEPARTURE_DELAY = 9, 5
"""Which fields of a line."""


def main() -> None:
    """Run the query."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    spark = rayka.spark.session("flights", configs={"spark.sql.shuffle.partitions": "4"})
    fields = F.split(F.col("value").cast("string"), ",")
    flights = rayka.spark.read_topic(spark, "flights", columns=("value",)).select(
        fields[CARRIER].alias("carrier"), fields[DEPARTURE_DELAY].cast("double").alias("delay")
    )
    by_carrier = flights.groupBy("carrier").agg(F.count("*").alias("flights"), F.avg("delay").alias("delay"))
    print(json.dumps({row["carrier"]: (row["flights"], row["delay"]) for row in by_carrier.collect()}))
    rayka.spark.stop()


if __name__ == "__main__":
    main()
