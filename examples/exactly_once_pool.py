"""A pool of Ray actors maps one topic to another exactly once, although one actor is killed with -9 in the middle.

Each actor has its own partitions, and writes in transactions with its own transactional id. The offsets that it has
read are committed together with the results. When Ray restarts a killed actor, `init_transactions` aborts the open
transaction and fences the dead process. The actor then continues from the committed offsets.
"""

from __future__ import annotations

import collections
import os
import signal
import tempfile
import time

import ray

import rayka

PARTITIONS, ACTORS, COUNT = 4, 2, 20_000
SQUARES = [("squares", 0), ("squares", 1)]


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=2)
class Mapper:
    """Squares the readings of every `ACTORS`-th partition."""

    def __init__(self, number: int) -> None:
        self.number = number

    def process_id(self) -> int:
        return os.getpid()

    def run(self) -> None:
        """Map what the partitions have when the work begins."""
        with (
            rayka.connect() as cluster,
            cluster.producer(transactional_id=f"mapper-{self.number}") as producer,
            cluster.consumer(
                "mappers", enable_auto_commit=False, auto_offset_reset="earliest", isolation_level="read_committed"
            ) as consumer,
        ):
            producer.init_transactions()
            consumer.assign([("readings", partition) for partition in range(self.number, PARTITIONS, ACTORS)])
            ends = consumer.end_offsets(consumer.assignment())
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                batch = consumer.poll(timeout_ms=1000, max_records=100)
                with producer.transaction():
                    for records in batch.values():
                        squares = [b"%d" % int(record.value) ** 2 for record in records]
                        producer.send_many("squares", squares)
                    producer.send_offsets(consumer)


def main() -> None:
    """Write readings, map them while an actor dies, and compare."""
    with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
        admin = cluster.admin()
        admin.create_topic("readings", partitions=PARTITIONS)
        admin.create_topic("squares", partitions=2)
        with cluster.producer() as producer:
            for number in range(COUNT):
                producer.send("readings", b"%d" % number, partition=number % PARTITIONS)

        mappers = [Mapper.remote(number) for number in range(ACTORS)]
        victim = ray.get(mappers[0].process_id.remote())
        runs = [mapper.run.remote() for mapper in mappers]
        with cluster.consumer() as reader:
            while (written := sum(reader.end_offsets(SQUARES).values())) < COUNT / 4:
                time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        print(f"killed an actor with -9 after {written:,} results")
        ray.get(runs)

        found = collections.Counter[int]()
        with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            consumer.assign(SQUARES)
            while found.total() < COUNT and (batch := consumer.poll(timeout_ms=60_000)):
                found.update(int(record.value) for records in batch.values() for record in records)
        assert found == collections.Counter(number**2 for number in range(COUNT))
        print(f"{found.total():,} results, each of them once")


if __name__ == "__main__":
    main()
