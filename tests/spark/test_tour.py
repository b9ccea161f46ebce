"""The README's tour for the Spark user, as it stands there."""

from __future__ import annotations

import rayka.spark
from tests.support.readme import program


def test_the_tour_in_the_readme(cluster, tmp_path, capfd):
    rayka.spark.stop()  # that of the tests before: a program has one
    for topic in ("clicks", "pages"):
        cluster.admin().create_topic(topic, partitions=2)
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("clicks", b"/item/%d" % (number % 3), key=b"%d" % number)
    tour = {"__name__": "tour"}
    try:
        exec(program("Spark", tmp_path), tour)
        written = tour["spark"].read.parquet(f"{tmp_path}/clicks").count()
    finally:
        rayka.spark.stop()
    printed = capfd.readouterr().out
    assert "|/item/1|  100|" in printed
    assert "3 rows acknowledged" in printed
    assert "batch 0: 300 offsets in " in printed
    assert written == 300
