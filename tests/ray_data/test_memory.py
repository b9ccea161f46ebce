"""A topic ten times larger than the object store is read at a steady footprint, once its processes have started."""

from __future__ import annotations

import os
import statistics
import threading
from collections import defaultdict
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer

from rayka.data import read_topic
from rayka.testing import title
from tests.support.embedded import embedded

STORE_BYTES = 80 * 1024 * 1024
VALUE_BYTES = 2_000
COUNT = 420_000
MARGIN_MB = 80
SAMPLE_S = 0.1
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def large_topic(tmp_path_factory):
    """On a cluster of its own with a small store.

    A topic as large as the store is read before, so that every process has loaded what it needs.
    """
    with embedded(tmp_path_factory.mktemp("rayka"), store_bytes=STORE_BYTES, cpus=2) as cluster:
        fill(cluster, "small", COUNT // 10)
        assert sum(map(len, blocks("small"))) == COUNT // 10
        fill(cluster, "large", COUNT)
        yield "large"


def fill(cluster, topic, count):
    cluster.admin().create_topic(topic, 4)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "lz4"})
    value = os.urandom(VALUE_BYTES // 20) * 20
    for begin in range(0, count, 10_000):
        records = [{"value": value}] * min(10_000, count - begin)
        assert producer.produce_batch(topic, records) == len(records)
        assert producer.flush(60) == 0


def blocks(topic):
    return read_topic(topic).iter_batches(batch_size=None, batch_format="pyarrow")


def lengths(batch):
    return pa.table({"rows": [batch.num_rows], "bytes": [pc.sum(pc.binary_length(batch["value"])).as_py()]})


def memory():
    """What all processes of the cluster use, in MB, with the store: memory that several share counts once.

    Clean pages of programs and libraries are left out. Their share is larger when others who run the same on this
    machine end, by 200 MB and more in all.
    """
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss_Dirty:")), 0)
    return total / 1024


def spilling_processes():
    """Ray's processes that write objects to disk, or read them back; they start when the store is four fifths full."""
    names = map(title, psutil.Process().children(recursive=True))
    return [name for name in names if "SpillWorker" in name or "RestoreWorker" in name]


class Footprint:
    """Samples of `memory` while a topic is read, of the first half of its records and of the second."""

    def __init__(self):
        self.rows = self.bytes = 0
        self.samples = defaultdict(list)
        self._before = memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def add(self, sums):
        self.rows += pc.sum(sums["rows"]).as_py()
        self.bytes += pc.sum(sums["bytes"]).as_py()

    def assert_steady(self):
        """All was read; the second half took no more memory than the first, the whole little more than was there."""
        assert (self.rows, self.bytes) == (COUNT, COUNT * VALUE_BYTES)
        first, second = self.samples[False], self.samples[True]
        assert statistics.median(second) <= statistics.median(first) + MARGIN_MB
        assert max(first + second) <= self._before + 2 * STORE_BYTES / 2**20
        assert spilling_processes() == []

    def _sample(self):
        while not self._done.wait(SAMPLE_S):
            self.samples[self.rows >= COUNT / 2].append(memory())


def test_iter_batches(large_topic):
    with Footprint() as footprint:
        for block in blocks(large_topic):
            footprint.add(lengths(block))
    footprint.assert_steady()


def test_map_batches(large_topic):
    with Footprint() as footprint:
        mapped = read_topic(large_topic, min_splits=40).map_batches(lengths, batch_format="pyarrow")
        for sums in mapped.iter_batches(batch_size=None, batch_format="pyarrow"):
            footprint.add(sums)
    footprint.assert_steady()
