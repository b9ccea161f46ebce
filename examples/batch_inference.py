"""Batch inference with Ray Data: reviews from a topic through a model, the scores into another topic.

The model is loaded once for each worker and sees whole batches of Arrow columns.
"""

from __future__ import annotations

import tempfile

import pyarrow as pa
import pyarrow.compute as pc

import rayka
import rayka.data

REVIEWS = ["a good read", "good, very good", "bad", "not bad", "so bad it is good", "a book"]
COUNT = 30_000


class Sentiment:
    """Stands for a model: good words count up, bad ones down."""

    def __init__(self) -> None:
        self.weights = {"good": 1, "bad": -1}

    def __call__(self, batch: pa.Table) -> pa.Table:
        text = pc.cast(batch["value"], pa.string())
        counts = [pc.multiply(pc.count_substring(text, word), weight) for word, weight in self.weights.items()]
        score = pc.add(*counts)
        return pa.table({"key": batch["key"], "score": pc.cast(score, pa.string())})


with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
    cluster.admin().create_topic("reviews", partitions=4)
    cluster.admin().create_topic("scores", partitions=2)
    with cluster.producer() as producer:
        for number in range(COUNT):
            producer.send("reviews", REVIEWS[number % len(REVIEWS)].encode(), key=b"review-%d" % number)

    reviews = rayka.data.read_topic("reviews", columns=("key", "value"))
    scores = reviews.map_batches(Sentiment, batch_format="pyarrow", concurrency=1)
    sent = rayka.data.write_topic(scores, "scores", key="key", value="score")

    read = rayka.data.read_topic("scores", columns=("value",)).to_pandas()["value"].astype(int)
    print(f"{sent:,} reviews scored; {(read > 0).sum():,} are good, {(read < 0).sum():,} bad")
    assert sent == len(read) == COUNT
    assert (read > 0).sum() == COUNT // 3
