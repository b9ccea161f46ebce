"""The program for PySpark 4 in docs/spark.md, as it stands there."""

from __future__ import annotations

from tests.spark4.reading import consumed
from tests.support.readme import ROOT, blocks, relocated


def test_the_program_in_the_documentation(spark, cluster, tmp_path):
    for topic in ("clicks", "pages"):
        cluster.admin().create_topic(topic, partitions=2)
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("clicks", b"/page/%d" % (number % 3))
    (program,) = [block for block in blocks(ROOT / "docs" / "spark.md") if block.test == "tests/spark4/test_tour.py"]
    text = relocated(program.text, tmp_path).replace("127.0.0.1:9092", cluster.bootstrap_servers)
    exec(text, {"__name__": "tour"})
    assert spark.read.parquet(f"{tmp_path}/clicks4").count() == 300
    counts = {record.key: record.value for record in consumed(cluster, "pages", partitions=2)}
    assert counts == {b"/page/0": b"100", b"/page/1": b"100", b"/page/2": b"100"}
