"""Each option of Spark's Kafka source does in `format("rayka")` what it does there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from rayka.errors import RaykaError
from rayka.spark.source.source import RaykaSource
from tests.clients.tools import spark_kafka
from tests.spark4.option_cases import ANSWERS, CASES, REFUSED, STREAM_FLAG, answer, fill_topics, summary
from tests.spark4.reading import PLACES, fill
from tests.support.scale import IS_LONG

ROOT = Path(__file__).parents[2]
OF_KAFKA = json.loads(ANSWERS.read_text())
DIFFERENT = {"assign of a partition that is not there": REFUSED}  # Spark's Kafka source says nothing, and reads nothing


@pytest.fixture(scope="module")
def topics(cluster):
    fill_topics(cluster, fill)


def rows(reader, splits):
    return [[row for batch in reader.read(split) for row in batch.to_pylist()] for split in splits]


def batch(options):
    reader = RaykaSource(options).reader(PLACES)
    found = [split for split in rows(reader, reader.partitions()) if split]
    return {"rows": summary(row for split in found for row in split), "splits": len(found)}


def stream(options):
    reader = RaykaSource(options).streamReader(PLACES)
    reader.prepareForTriggerAvailableNow()
    start, batches = reader.initialOffset(), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        batches.append(summary(row for split in rows(reader, reader.partitions(start, end)) for row in split))
        start = end
    return {"batches": batches}


@pytest.mark.parametrize("name", [name for name in CASES if name != "includeHeaders"])
def test_an_option_does_what_it_does_in_sparks_kafka_source(cluster, topics, name):
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **CASES[name]}
    try:
        found = stream(options) if options.pop(STREAM_FLAG, None) else batch(options)
    except RaykaError:
        found = REFUSED
    assert found == DIFFERENT.get(name, OF_KAFKA[name])


def test_headers_are_those_of_sparks_kafka_source(spark, cluster, topics):
    found = answer(spark, "rayka", cluster.bootstrap_servers, CASES["includeHeaders"])
    assert found == OF_KAFKA["includeHeaders"]


@pytest.mark.skipif(not IS_LONG, reason="takes minutes, and the answers are in kafka_answers.json")
@pytest.mark.timeout(900)
def test_sparks_kafka_source_gives_the_answers_that_are_kept(cluster, topics, tmp_path):
    beneath = importlib.util.find_spec("raydp")
    assert beneath is not None and beneath.origin is not None, "there is no environment of PySpark 3.5 beneath this one"  # noqa: PT018
    python = Path(beneath.origin).parents[4] / "bin" / "python"
    jars = ",".join(map(os.fspath, sorted(spark_kafka().glob("*.jar"))))
    command = [python, "-m", "tests.spark4.option_cases", jars, cluster.bootstrap_servers, tmp_path / "answers.json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    subprocess.run(command, cwd=ROOT, env=environment, timeout=800, check=True)
    assert json.loads((tmp_path / "answers.json").read_text()) == OF_KAFKA
