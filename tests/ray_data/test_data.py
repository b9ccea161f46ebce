"""Topics as Ray Data datasets."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import signal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
import ray.data

import rayka.data.read
from rayka.actors.replica.published_ranges import RayTables
from rayka.client.consumer import topic_offsets
from rayka.data import iter_topic, read_topic, write_topic
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.checkpoint import Checkpoint, PlannedBatch
from rayka.storage.files import RealFiles
from rayka.testing import wait_until
from tests.support import tiered_topic
from tests.support.gate import Gate
from tests.support.leaders import kill_leader, tables_given
from tests.support.readme import ROOT, program
from tests.support.tiered_topic import create_tiered
from tests.support.transactions import COMMITTED, undecided

COUNT = 3_000
LARGE_COUNT = 30_000
LARGE_VALUE = os.urandom(1_000)
"""Each partition has several tables."""


def fill(cluster, topic, count=COUNT, start=0):
    with cluster.producer() as producer:
        for i in range(start, start + count):
            producer.send(topic, b"value %d" % i, key=b"key %d" % (i % 7), partition=i % 3)


def fill_large(cluster, topic):
    with cluster.producer() as producer:
        for i in range(LARGE_COUNT):
            producer.send(topic, LARGE_VALUE, partition=i % 3)


def test_old_records_are_read_from_the_store_without_the_leader(cluster, data_dir):
    local_start = create_tiered(cluster, "ray-data-tiered", data_dir)
    ending = {"ray-data-tiered": {0: local_start}}

    rows = read_topic("ray-data-tiered", ending=ending, min_splits=4).take_all()

    assert [int(value.split()[0]) for value in sorted(values(rows), key=lambda value: int(value.split()[0]))] == list(
        range(local_start)
    )
    assert tables_given(cluster, "ray-data-tiered") == 0
    assert read_topic("ray-data-tiered").count() == tiered_topic.COUNT
    assert tables_given(cluster, "ray-data-tiered") > 0


def values(rows):
    return sorted(row["value"] for row in rows)


def expected(count=COUNT):
    return sorted(b"value %d" % i for i in range(count))


def test_every_record_is_there_once(cluster, topic):
    fill(cluster, topic)
    dataset = read_topic(topic)
    assert dataset.schema().names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert dataset.count() == COUNT
    assert values(dataset.take_all()) == expected()
    assert values(read_topic(topic, min_splits=10, columns=("value",)).take_all()) == expected()
    assert read_topic(topic).select_columns(["offset"]).schema().names == ["offset"]


def test_only_committed_transactions_are_read_unless_others_are_asked_for(cluster, topic):
    with undecided(cluster, topic):
        assert values(read_topic(topic, columns=("value",)).take_all()) == COMMITTED
        assert read_topic(topic, read_committed=False).count() == 4


def test_a_dataset_is_fixed_when_it_is_made(cluster, topic):
    fill(cluster, topic, 300)
    dataset = read_topic(topic)
    fill(cluster, topic, 300, start=300)
    assert values(dataset.take_all()) == expected(300)
    assert read_topic(topic, starting={topic: {0: 100, 1: 100, 2: 100}}).count() == 300
    assert read_topic(topic, starting="latest").count() == 0


def test_batches_are_mapped_and_written_to_another_topic(cluster, topic):
    fill(cluster, topic)
    other = f"{topic}-lengths"
    cluster.admin().create_topic(other, 2)

    def lengths(batch: pa.Table) -> pa.Table:
        text = pc.cast(pc.binary_length(batch["value"]), pa.string())
        return pa.table({"key": batch["key"], "length": text})

    mapped = read_topic(topic).map_batches(lengths, batch_format="pyarrow")
    assert write_topic(mapped, other, key="key", value="length") == COUNT
    rows = read_topic(other).take_all()
    assert sum(int(row["value"]) for row in rows) == sum(map(len, expected()))
    partitions = {row["key"]: set() for row in rows}
    for row in rows:
        partitions[row["key"]].add(row["partition"])
    assert all(len(found) == 1 for found in partitions.values())


def test_a_column_that_is_not_there_is_named(cluster, topic, tmp_path):
    with pytest.raises(Exception, match="no column price"):
        write_topic(ray.data.from_items([{"value": "a"}]), topic, value="price")
    with pytest.raises(RaykaError) as refused:
        read_topic("no-such-topic")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for columns in (("price",), ("value", "value")):
        with pytest.raises(RaykaError) as refused:
            read_topic(topic, columns=columns)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        with pytest.raises(RaykaError) as refused:
            iter_topic(topic, checkpoint=tmp_path, columns=columns)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_leader_is_killed_in_the_middle_of_a_read(cluster, topic, tmp_path):
    fill_large(cluster, topic)
    gate = Gate(tmp_path)
    pass_on = gate.waiting()

    def count(batch: pa.Table) -> pa.Table:
        (batch,) = pass_on([batch])
        return pa.table({"rows": [batch.num_rows], "offsets": [pc.sum(batch["offset"]).as_py()]})

    read = concurrent.futures.ThreadPoolExecutor(1).submit(
        lambda: read_topic(topic).map_batches(count, batch_format="pyarrow", batch_size=None).take_all()
    )
    (partition, *_) = gate.wait_for_readers()
    kill_leader(cluster, topic, partition)
    assert not read.done()
    gate.open()
    sums = read.result(300)
    assert sum(row["rows"] for row in sums) == LARGE_COUNT
    assert sum(row["offsets"] for row in sums) == 3 * sum(range(LARGE_COUNT // 3))
    assert tables_given(cluster, topic, partition) > 0, "the range had been read before the kill"


def test_a_worker_of_a_read_is_killed_after_it_has_given_blocks(cluster, tmp_path):
    """Ray keeps the blocks that it has and runs the task again, to which a new leader gives tables cut elsewhere."""
    cluster.admin().create_topic("worker-killed", 1)
    with cluster.producer() as producer:
        producer.send_many("worker-killed", [os.urandom(index % 173 * 12) for index in range(LARGE_COUNT)])
    columns = ("value", "partition", "offset")
    read_topic("worker-killed", columns=columns, starting={"worker-killed": {0: 9}}).materialize()
    gate, killed = Gate(tmp_path), tmp_path / "killed"
    pass_on = gate.waiting()

    def die_once(batch: pa.Table) -> pa.Table:
        if batch["offset"][-1].as_py() >= LARGE_COUNT // 2:
            (batch,) = pass_on([batch])
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return batch

    dataset = read_topic("worker-killed", columns=columns).map_batches(
        die_once, batch_format="pyarrow", batch_size=None
    )
    blocks = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow"))
    offsets = next(blocks)["offset"].to_pylist()
    gate.wait_for_readers()
    kill_leader(cluster, "worker-killed", 0)
    gate.open()
    for block in blocks:
        offsets += block["offset"].to_pylist()
    assert killed.exists()
    assert sorted(offsets) == list(range(LARGE_COUNT))


def test_a_read_task_of_a_compacted_topic_does_not_run_again(cluster, topic, monkeypatch):
    """The log cleaner may have removed records meanwhile, so that its blocks would be others."""
    cluster.admin().create_topic(f"{topic}-compacted", 1, configs={"cleanup.policy": "compact"})
    given = []
    read_datasource = ray.data.read_datasource

    @functools.wraps(read_datasource)
    def recorded(*arguments, **options):
        given.append(options["ray_remote_args"])
        return read_datasource(*arguments, **options)

    monkeypatch.setattr(ray.data, "read_datasource", recorded)
    fill(cluster, topic)
    with cluster.producer() as producer:
        producer.send(f"{topic}-compacted", b"value", key=b"key")
    assert read_topic(topic).count() == COUNT
    assert read_topic(f"{topic}-compacted").count() == 1
    assert given == [None, {"max_retries": 0}]


def test_a_read_whose_node_is_gone_goes_elsewhere(cluster, topic, monkeypatch):
    """The nodes of the leaders are looked up when the dataset is made; one may be gone when it is executed."""
    fill(cluster, topic)
    by_node = rayka.data.read._by_node
    gone = ray.NodeID.from_random().hex()

    def one_is_gone(*arguments):
        ((here, splits),) = by_node(*arguments).items()
        return {gone: splits[:1], here: splits[1:]}

    monkeypatch.setattr(rayka.data.read, "_by_node", one_is_gone)
    assert values(read_topic(topic).take_all()) == expected()


def test_blocks_are_bounded_in_bytes_and_take_turns(cluster, topic, tmp_path):
    fill_large(cluster, topic)
    tables = iter_topic(topic, checkpoint=tmp_path, max_bytes_per_block=2**20, idle_timeout_s=0.5)
    sizes, first, rows = [], [], 0
    for table in tables:
        sizes.append(table.nbytes)
        first.append(table["partition"][0].as_py())
        rows += table.num_rows
    assert rows == LARGE_COUNT
    assert max(sizes) <= 8 * 2**20, "one table of a leader at most"
    assert len(sizes) >= 6
    assert set(first[:3]) == {0, 1, 2}


def test_the_owner_of_a_table_knows_that_a_reader_holds_it(cluster):
    """What `RayTables` relies on."""

    @ray.remote
    class Owner:
        def __init__(self):
            self.tables = RayTables()
            self.refs = []

        def put(self, count):
            self.refs = [self.tables.put(pa.table({"a": [*range(count)]}))]
            return self.refs

        def drop(self):
            return self.tables.key(self.refs.pop())

        def is_referenced(self, name):
            return name in self.tables.referenced()

    owner = Owner.remote()
    (ref,) = ray.get(owner.put.remote(100_000))
    name = ray.get(owner.drop.remote())
    assert ray.get(owner.is_referenced.remote(name))
    del ref
    wait_until(lambda: not ray.get(owner.is_referenced.remote(name)), 120, "nobody holds the table")


def test_an_endless_read_commits_what_is_done(cluster, topic, tmp_path):
    fill(cluster, topic, 1_000)
    blocks = iter_topic(topic, checkpoint=tmp_path, max_offsets_per_block=300, idle_timeout_s=0.5)
    first = next(blocks)
    second = next(blocks)
    blocks.close()
    assert first.num_rows == second.num_rows == 300
    again = iter_topic(topic, checkpoint=tmp_path, max_offsets_per_block=300, idle_timeout_s=0.5)
    repeated = next(again)
    assert repeated.equals(second)
    rest = [first, repeated, *again]
    assert sorted(value for block in rest for value in block["value"].to_pylist()) == expected(1_000)
    assert list(iter_topic(topic, checkpoint=tmp_path, idle_timeout_s=0.1)) == []


def test_a_log_that_ends_before_what_was_read_ends_an_endless_read_unless_that_is_allowed(
    cluster, topic, tmp_path, monkeypatch
):
    monkeypatch.setattr(topic_offsets, "_PATIENCE_S", 0.3)
    fill(cluster, topic, 30)
    assert sum(block.num_rows for block in iter_topic(topic, checkpoint=tmp_path, idle_timeout_s=0.1)) == 30
    move_on(tmp_path, 5)
    with pytest.raises(RaykaError, match="the log ends at offset 10, and had been read up to offset 15"):
        next(iter_topic(topic, checkpoint=tmp_path))
    skipping = {"checkpoint": tmp_path, "on_data_loss": "skip", "idle_timeout_s": 0.1}
    assert [block.num_rows for block in iter_topic(topic, **skipping)] == [0]
    fill(cluster, topic, 6)
    assert [block.num_rows for block in iter_topic(topic, **skipping)] == [6]


def move_on(directory, offsets):
    """Let a checkpoint get further than the log, as one does whose log a crash of the machine has cut."""
    checkpoint = Checkpoint(directory, RealFiles())
    last = checkpoint.last()
    ends = [each.end_offset + offsets for each in last.ranges]
    moved = tuple(each.between(end, end) for each, end in zip(last.ranges, ends, strict=True))
    checkpoint.plan(PlannedBatch(last.batch_id, moved))
    checkpoint.close()


def test_the_tour_in_the_readme(cluster, tmp_path, capfd):
    for name in ("clicks", "lengths"):
        cluster.admin().create_topic(name, 2)
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("clicks", b"/item/%d" % (number % 3), key=b"%d" % number)
    exec(program("Ray Data", tmp_path), {"__name__": "tour"})
    printed = capfd.readouterr().out
    assert "300 clicks" in printed
    assert "300 records" in printed
    assert {row["value"] for row in read_topic("lengths").take_all()} == {b"7"}


def test_the_program_in_the_documentation(cluster, tmp_path, capfd):
    for name in ("reviews", "scores"):
        cluster.admin().create_topic(name, 2)
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("reviews", b"good", key=b"%d" % number)
    exec(program("For the Ray Data user", tmp_path, ROOT / "docs" / "spark.md"), {"__name__": "tour"})
    assert sum(map(int, capfd.readouterr().out.split())) == 300
    assert {row["value"] for row in read_topic("scores").take_all()} == {b"4"}
