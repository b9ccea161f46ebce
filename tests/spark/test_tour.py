"""The programs for the Spark user in the README and in docs/spark.md, as they stand there."""

from __future__ import annotations

import inspect

import pytest

import rayka.spark
from tests.spark.conftest import create_anew
from tests.support.readme import ROOT, blocks, program, relocated


@pytest.fixture(autouse=True)
def running(spark, monkeypatch):
    """A program has one session: here it is the one that `session` has started for the tests before."""
    parameters = inspect.signature(rayka.spark.session)

    def session(*given, **named):
        parameters.bind(*given, **named)
        return spark

    monkeypatch.setattr(rayka.spark, "session", session)


def test_the_tour_in_the_readme(cluster, tmp_path, capfd):
    create_anew(cluster, "clicks", "pages")
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("clicks", b"/item/%d" % (number % 3), key=b"%d" % number)
    tour = {"__name__": "tour"}
    exec(program("Spark", tmp_path), tour)
    written = tour["spark"].read.parquet(f"{tmp_path}/clicks").count()
    printed = capfd.readouterr().out
    assert "|/item/1|  100|" in printed
    assert "3 rows acknowledged" in printed
    assert "batch 0: 300 offsets in " in printed
    assert written == 300


def test_the_programs_in_the_documentation(cluster, tmp_path, capfd):
    create_anew(cluster, "clicks", "pages", "page-clicks")
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("clicks", b"/page/%d" % (number % 3), key=b"%d" % number)
    programs = [block for block in blocks(ROOT / "docs" / "spark.md") if block.test == "tests/spark/test_tour.py"]
    tour = {"__name__": "tour"}
    for block in programs:
        exec(relocated(block.text, tmp_path), tour)
    written = tour["spark"].read.parquet(f"{tmp_path}/clicks").count()
    mapped = rayka.spark.read_topic(tour["spark"], "page-clicks").count()
    assert len(programs) == 4
    assert mapped == written
    assert "batch 0: " in capfd.readouterr().out
    assert written == 300
