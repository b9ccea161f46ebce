"""Clickstream sessions with Spark: clicks from a topic, cut into sessions, into Parquet and into another topic.

A session of a user ends after half an hour without a click.
"""

from __future__ import annotations

import json
import random
import tempfile

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

import rayka
import rayka.spark

USERS, CLICKS, GAP_S = 200, 20_000, 1800
START_MS = 1_750_000_000_000

with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
    cluster.admin().create_topic("clicks", partitions=4)
    cluster.admin().create_topic("sessions", partitions=2)
    chance = random.Random(1)
    with cluster.producer(compression_type="lz4") as producer:
        for _ in range(CLICKS):
            user, when = f"user-{chance.randrange(USERS)}", START_MS + chance.randrange(7 * 24 * 3600 * 1000)
            page = json.dumps({"user": user, "page": f"/item/{chance.randrange(50)}"})
            producer.send("clicks", page.encode(), key=user.encode(), timestamp_ms=when)

    spark = rayka.spark.session(configs={"spark.sql.shuffle.partitions": "4"})
    values = rayka.spark.json_values("user string, page string")
    clicks = rayka.spark.read_topic(spark, "clicks", columns=("value", "timestamp"), values=values)

    by_user = Window.partitionBy("user").orderBy("timestamp")
    seconds = F.col("timestamp").cast("double")
    is_new = F.coalesce(seconds - F.lag(seconds).over(by_user) > GAP_S, F.lit(True))
    sessions = (
        clicks.withColumn("session", F.sum(is_new.cast("int")).over(by_user))
        .groupBy("user", "session")
        .agg(F.min("timestamp").alias("began"), F.max("timestamp").alias("ended"), F.count("*").alias("clicks"))
    )
    sessions.write.parquet(f"{directory}/sessions")
    stored = spark.read.parquet(f"{directory}/sessions")
    sent = rayka.spark.write_topic(stored, "sessions", key="user")

    stored.orderBy(F.desc("clicks")).show(5)
    assert stored.agg(F.sum("clicks")).first()[0] == CLICKS
    assert rayka.spark.read_topic(spark, "sessions").count() == sent == stored.count()
    print(f"{CLICKS:,} clicks of {USERS} users are {sent:,} sessions")
    rayka.spark.stop()
