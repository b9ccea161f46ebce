"""Word counts in micro-batches, with a crash in the middle: every word counts once.

The stream runs in a separate process (`python examples/word_counts.py stream ADDRESS DIRECTORY`), which is killed with
-9 while it works, and restarted. The counts are in SQLite. The stream's id, the batch number and the batch's offsets
are stored in the same transaction as the counts. So a batch that comes again after the crash changes nothing, and a
batch with other offsets, because its checkpoint was copied, is refused.
"""

from __future__ import annotations

import collections
import contextlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import time

import ray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import rayka
import rayka.spark

WORDS = ["log", "segment", "offset", "leader", "replica", "batch", "broker", "topic"]
ADD = "INSERT INTO counts VALUES (?1, ?2) ON CONFLICT DO UPDATE SET count = count + ?2"
BATCHES = "CREATE TABLE IF NOT EXISTS batches (stream TEXT, id INTEGER, offsets TEXT, PRIMARY KEY (stream, id))"
LINES, WORDS_PER_LINE, LINES_PER_BATCH = 4_000, 5, 500


def stream(address: str, directory: str) -> None:
    """Count until there is nothing new."""
    ray.init(address=address, log_to_driver=False)
    spark = rayka.spark.session(executor_cores=1, configs={"spark.sql.shuffle.partitions": "1"})
    database = sqlite3.connect(f"{directory}/counts.db")
    database.execute("CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER)")
    database.execute(BATCHES)

    def count_words(lines: DataFrame, batch_id: int) -> None:
        words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
        counts = words.groupBy("word").count().collect()
        batch = (rayka.spark.stream_id(), batch_id)
        with database, contextlib.suppress(sqlite3.IntegrityError):
            database.execute("INSERT INTO batches VALUES (?, ?, ?)", (*batch, rayka.spark.batch_offsets()))
            for word, count in counts:
                database.execute(ADD, (word, count))
        ((offsets,),) = database.execute("SELECT offsets FROM batches WHERE stream = ? AND id = ?", batch)
        assert offsets == rayka.spark.batch_offsets(), f"batch {batch_id} was counted with other offsets: {offsets}"
        print(f"counted batch {batch_id}", flush=True)

    with rayka.spark.stream_topic(
        spark,
        "lines",
        checkpoint=f"{directory}/checkpoint",
        sink=count_words,
        columns=("value",),
        max_offsets_per_trigger=LINES_PER_BATCH,
    ) as batches:
        batches.process_available()
    rayka.spark.stop()


def start(address: str, directory: str) -> subprocess.Popen[str]:
    """The stream in a process of its own."""
    command = [sys.executable, __file__, "stream", address, directory]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def main() -> None:
    """Write lines, count them with a crash in the middle, and compare."""
    with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
        cluster.admin().create_topic("lines", partitions=3)
        chance, expected = random.Random(1), collections.Counter[str]()
        with cluster.producer() as producer:
            for _ in range(LINES):
                line = chance.choices(WORDS, k=WORDS_PER_LINE)
                expected.update(line)
                producer.send("lines", " ".join(line).encode())
        address = ray.get_runtime_context().gcs_address

        crashed = start(address, directory)
        for done, _ in enumerate(crashed.stdout or (), 1):
            if done == 3:
                time.sleep(0.5)
                crashed.kill()
        print("killed with -9; once more")
        again = start(address, directory)
        print((again.stdout.read() if again.stdout else "").strip())
        assert again.wait() == 0

        counts = dict(sqlite3.connect(f"{directory}/counts.db").execute("SELECT word, count FROM counts"))
        assert counts == expected, f"{counts} are not {expected}"
        print(f"{sum(counts.values()):,} words, each counted once: {counts}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["stream"]:
        stream(*sys.argv[2:])
    else:
        main()
