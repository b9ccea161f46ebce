"""Python on actor handles beside confluent-kafka through the port: `python -m benchmarks.python_client`.

One broker, four partitions; each figure is from a process of its own, and the two clients take turns. Producers have
batches of up to 1 MB that linger for 5 ms; a figure counts until the last acknowledgement. Consumers read what is in
the page cache. The first run of each load does not count: what is not compiled yet is compiled and stored then. The
clock runs while a process loads compiled code: of a long run (`--times`) that is a small part.
Processor seconds are those of the client's and the broker's processes together, for each million records; times are in
ms. `confluent-kafka` has no calls like some of rayka's: these are compared with its quickest. The second line says how
fast this machine copies memory, writes and reads files in the page cache, and what follows from it at most for a client
that polls or produces (`benchmarks.machine`). Tables may be at the limit of the memory: so two processes that only do
what no client can leave out take turns with the clients, with the same number of bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import load, machine
from benchmarks.brokers import CpuClock, Rayka
from rayka.client import runtime
from rayka.client.compiled import THREAD_NAME as COMPILING

Figures = dict[str, float]
Load = tuple[str, str]
"""The name of a function, and the place where it runs."""
ROOT = Path(__file__).parents[1]
PARTITIONS = 4
RECORDS = {100: 2_000_000, 1000: 400_000}
CHUNK = 100_000
held: list[mmap.mmap] = []
"""Memory that a load used (`benchmarks.machine`), until its clock starts: the kernel does not keep it for longer."""
RAY_MEMORY_MONITOR = "RAY_memory_monitor_refresh_ms"
SETTINGS: dict[str, Any] = {"linger_ms": 5, "batch_size": 1_000_000}


def connect(address: str) -> Any:
    import rayka

    return rayka.connect(address)


def timed(work: Callable[[], int]) -> Figures:
    """The rate of `work`, which returns a number of records, and the processor time of this process meanwhile.

    Ray starts a worker for each that gets a task or an actor: that takes a processor for a second or two.
    """
    machine.settle()
    while held:
        held.pop().close()
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    records = work()
    elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"records": records, "rate": records / elapsed, "cpu": used}


def ours_send(address: str, topic: str, size: int, count: int) -> Figures:
    producer, value = connect(address).producer(**SETTINGS), load.payload(size)
    producer.send(topic, value).get()

    def work() -> int:
        send = producer.send
        for _ in range(count):
            send(topic, value)
        producer.flush()
        return count

    return timed(work)


def theirs_send(bootstrap: str, topic: str, size: int, count: int) -> Figures:
    from confluent_kafka import Producer

    producer, value = Producer({"bootstrap.servers": bootstrap, **load.PRODUCER}), load.payload(size)
    producer.produce(topic, value)
    producer.flush()

    def work() -> int:
        produce, poll = producer.produce, producer.poll
        for _ in range(count):
            try:
                produce(topic, value)
            except BufferError:
                poll(0.01)
                produce(topic, value)
        assert not producer.flush(load.TIMEOUT_S)
        return count

    return timed(work)


def ours_send_many(address: str, topic: str, size: int, count: int) -> Figures:
    producer, values = connect(address).producer(**SETTINGS), [load.payload(size)] * CHUNK
    producer.send_many(topic, values[:10_000])
    producer.flush()

    def work() -> int:
        for start in range(0, count, CHUNK):
            producer.send_many(topic, values[: count - start])
        producer.flush()
        return count

    return timed(work)


def theirs_send_many(bootstrap: str, topic: str, size: int, count: int) -> Figures:
    def work() -> int:
        sent, _ = load.produce_on(bootstrap, topic, size, 3600, max_records=count)
        return sent

    return timed(work)


def ours_send_table(address: str, topic: str, size: int, count: int) -> Figures:
    import pyarrow as pa

    producer = connect(address).producer(**SETTINGS)
    table = pa.table({"value": pa.array([load.payload(size)] * CHUNK, pa.binary())})
    producer.send_table(topic, table.slice(0, 10_000))
    producer.flush()

    def work() -> int:
        for start in range(0, count, CHUNK):
            producer.send_table(topic, table.slice(0, count - start))
        producer.flush()
        return count

    return timed(work)


def ours_consumer(address: str, topic: str) -> Any:
    consumer = connect(address).consumer(auto_offset_reset="earliest", consumer_timeout_ms=10_000)
    consumer.end_offsets([(topic, partition) for partition in range(PARTITIONS)])  # now there is a way to the leaders
    return consumer


def assign_ours(consumer: Any, topic: str) -> None:
    consumer.assign([(topic, partition) for partition in range(PARTITIONS)])


def ours_iterate(address: str, topic: str, size: int, count: int) -> Figures:
    consumer = ours_consumer(address, topic)

    def work() -> int:
        assign_ours(consumer, topic)
        seen = 0
        for record in consumer:
            assert record.value is not None
            seen += 1
            if seen == count:
                break
        return seen

    return timed(work)


def theirs_iterate(bootstrap: str, topic: str, size: int, count: int) -> Figures:
    consumer = theirs_consumer(bootstrap, topic)

    def work() -> int:
        seen = 0
        assign(consumer, topic)
        while seen < count:
            for message in consumer.consume(load.CALL_RECORDS, 1.0):
                assert message.value() is not None
                seen += 1
        return seen

    return timed(work)


def ours_poll(address: str, topic: str, size: int, count: int) -> Figures:
    options = {"timeout_ms": 1000, "max_records": load.CALL_RECORDS}
    return polled(address, topic, count, lambda consumer: sum(map(len, consumer.poll(**options).values())))


def polled(address: str, topic: str, count: int, poll: Callable[[Any], int]) -> Figures:
    consumer = ours_consumer(address, topic)

    def work() -> int:
        assign_ours(consumer, topic)
        seen = 0
        while seen < count:
            seen += poll(consumer)
        return seen

    return timed(work)


def theirs_poll(bootstrap: str, topic: str, size: int, count: int) -> Figures:
    consumer = theirs_consumer(bootstrap, topic)

    def work() -> int:
        seen = 0
        assign(consumer, topic)
        while seen < count:
            seen += len(consumer.consume(load.CALL_RECORDS, 1.0))
        return seen

    return timed(work)


def ours_poll_table(address: str, topic: str, size: int, count: int, copy: bool = True) -> Figures:
    from rayka.storage.columns import read  # noqa: F401  as a program that works with Arrow has it

    return polled(address, topic, count, lambda consumer: len(consumer.poll_table(timeout_ms=1000, copy=copy)))


def ours_poll_views(address: str, topic: str, size: int, count: int) -> Figures:
    return ours_poll_table(address, topic, size, count, copy=False)


def theirs_consumer(bootstrap: str, topic: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer({"bootstrap.servers": bootstrap, **load.CONSUMER})


def assign(consumer: Any, topic: str) -> None:
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])


def ours_one(address: str, topic: str, size: int, count: int) -> Figures:
    producer, value = connect(address).producer(), load.payload(size)
    return one_at_a_time(lambda: producer.send(topic, value, partition=0).get(), count)


def theirs_one(bootstrap: str, topic: str, size: int, count: int) -> Figures:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **load.PRODUCER, "linger.ms": 0})
    value = load.payload(size)

    def one() -> None:
        producer.produce(topic, value, partition=0)
        producer.flush()

    return one_at_a_time(one, count)


def most_send_table(data_dir: str, topic: str, size: int, count: int) -> Figures:
    """What the machine can do: two processes that only copy, compute CRCs, and write to files."""
    source = memoryview(bytearray(CHUNK * size))
    with (
        tempfile.TemporaryDirectory(prefix="most-", dir=data_dir) as directory,
        machine.Producing(Path(directory), source, count * size // machine.MB, has_crc=True) as producing,
    ):
        held.append(machine.used())  # only now: the other process must not hold it

        def work() -> int:
            producing.run()
            return count

        return timed(work)


def most_poll_table(data_dir: str, topic: str, size: int, count: int) -> Figures:
    """What the machine can do: two processes that only copy the topic's segments and compute CRCs."""
    with machine.Polling(sorted(Path(data_dir).rglob(f"{topic}-*/*.log"))) as polling:
        held.append(machine.used())

        def work() -> int:
            polling.run()
            return count

        return timed(work)


def one_at_a_time(one: Callable[[], object], count: int) -> Figures:
    """The times of so many acknowledged records, one after the other, after a tenth more to warm up."""
    for _ in range(count // 10):
        one()
    times: list[float] = []

    def work() -> int:
        for _ in range(count):
            began = time.perf_counter()
            one()
            times.append((time.perf_counter() - began) * 1000)
        return count

    return {**timed(work), **load.percentiles(times)}


VIEWS = "copy=False"
"""poll_table without copying values."""
PAIRS: dict[str, tuple[str, str]] = {
    "send": ("ours_send", "theirs_send"),
    "send_many": ("ours_send_many", "theirs_send_many"),
    "send_table": ("ours_send_table", "theirs_send_many"),
    "iterate": ("ours_iterate", "theirs_iterate"),
    "poll": ("ours_poll", "theirs_poll"),
    "poll_table": ("ours_poll_table", "theirs_poll"),
    VIEWS: ("ours_poll_views", "theirs_poll"),
    "one": ("ours_one", "theirs_one"),
}
MOST = {"send_table": "most_send_table", "poll_table": "most_poll_table", VIEWS: "most_poll_table"}
"""What the machine can do at most, for calls that may be at its limit."""
READS = ("iterate", "poll", "poll_table", VIEWS)
ON_NODE = ("driver", "task", "actor")
ALL = "all"
PLACES = (*ON_NODE, "node", ALL)
ELSEWHERE = "elsewhere"
"""A Ray resource that only the second node has."""


def work_in(place: str, name: str, address: str, *arguments: Any) -> Figures:
    """One load in this program, or in a Ray task or actor that it starts, the actor maybe on a second node.

    Unless it waits for each record, there is memory that was just used when the clock starts.
    """
    measured: Callable[..., Figures] = globals()[name]
    is_quick = not (name.endswith("_one") or name.startswith("most"))

    def load_of(address: str, *arguments: Any) -> Figures:
        if is_quick:
            held.append(machine.used())
        return measured(address, *arguments)

    if place == "driver" or not name.startswith("ours"):
        return load_of(address, *arguments)
    import ray

    class Worker:
        def work(self) -> Figures:
            return load_of(address, *arguments)

    connect(address)
    if place == "task":
        of_task: Figures = ray.get(ray.remote(load_of).remote(address, *arguments))
        return of_task
    resources = {ELSEWHERE: 1} if place == "node" else {}
    of_actor: Figures = ray.get(ray.remote(Worker).options(resources=resources).remote().work.remote())
    return of_actor


@contextlib.contextmanager
def second_node(broker: Rayka) -> Iterator[None]:
    """Another node of the broker's Ray cluster, on this machine."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    options = ["--address", address_of(broker), "--resources", json.dumps({ELSEWHERE: 1}), "--block"]
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    with subprocess.Popen([*ray, "start", *options], stdout=subprocess.DEVNULL, env=environment) as node:
        try:
            yield
        finally:
            node.terminate()


def address_of(broker: Rayka) -> str:
    running = runtime.find(broker.data_dir)
    assert running is not None
    return running.address


def start(place: str, name: str, *arguments: Any) -> subprocess.Popen[str]:
    """One load in a process of its own, which prints its figures when it ends."""
    command = [sys.executable, "-m", "benchmarks.python_client", "--load", json.dumps([place, name, *arguments])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def run(broker: Rayka, name: str, place: str, topic: str, size: int, count: int) -> Figures:
    """One load in a process of its own; `cpu` is for a million records, with the broker's."""
    os.sync()  # no measure pays for what the one before it left to be written
    where = address_of(broker) if name.startswith("ours") else broker.bootstrap
    if name.startswith("most"):
        where = str(broker.data_dir)
    cpu = CpuClock(broker.own())
    with start(place, name, where, topic, size, count) as process:
        output, _ = process.communicate(timeout=load.TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(f"the load {name} failed")
    figures: Figures = json.loads(output.splitlines()[-1])
    figures["cpu"] = (figures["cpu"] + cpu.used_s()) / figures["records"] * 1e6
    return figures


def median(figures: list[Figures]) -> Figures:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def in_turns(broker: Rayka, what: str, size: int, rounds: int, times: int, loads: list[Load]) -> list[Figures]:
    """The figures of some loads, which take turns. The first round does not count."""
    topic, count = f"{what.replace('=', '-')}-{size}", 5000 if what == "one" else RECORDS[size] * times
    seen: list[list[Figures]] = [[] for _ in loads]
    with topic_of(broker, topic) if what in READS else contextlib.nullcontext():
        if what in READS:
            load.produce_on(broker.bootstrap, topic, size, 3600, max_records=count)
        for _ in range(1 + rounds):
            for number, ((name, place), figures) in enumerate(zip(loads, seen, strict=True)):
                if what in READS:
                    figures.append(run(broker, name, place, topic, size, count))
                    continue
                with topic_of(broker, written := f"{topic}-{len(figures)}-{number}"):
                    figures.append(run(broker, name, place, written, size, count))
    return [median(figures[1:]) for figures in seen]


@contextlib.contextmanager
def topic_of(broker: Rayka, topic: str) -> Iterator[None]:
    """A topic and its records, which later ones would have to wait for, and whose memory later ones need."""
    load.create_topic(broker.bootstrap, topic, PARTITIONS)
    yield
    load.delete_topic(broker.bootstrap, topic)


def compare(broker: Rayka, what: str, size: int, rounds: int, times: int, place: str) -> None:
    """Both clients, or rayka's in all places of a node; one line of the report."""
    name, theirs_name = PAIRS[what]
    limits: list[Figures] = []
    if place == ALL:
        of_driver, *others = in_turns(broker, what, size, rounds, times, [(name, each) for each in ON_NODE])
        pairs = [(each, of_driver) for each in others]
    else:
        most = [MOST[what]] if what in MOST else []
        ours, theirs, *limits = in_turns(
            broker, what, size, rounds, times, [(each, place) for each in (name, theirs_name, *most)]
        )
        pairs = [(ours, theirs)]
    parts = [
        f"{each} {figures[each]:,.3f} / {others[each]:,.3f} = {figures[each] / others[each]:.2f}"
        for figures, others in pairs
        for each in (("p50", "p99", "cpu") if what == "one" else ("rate", "cpu"))
    ]
    for limit in limits:
        of_theirs = limit["rate"] / theirs["rate"]
        parts.append(f"{ours['rate'] / limit['rate']:.0%} of the machine's {limit['rate']:,.0f} = {of_theirs:.2f}")
    print(f"{what:<10} {size:>5} B  " + "   ".join(parts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PAIRS), help="of %(default)s")
    parser.add_argument("--sizes", default="100,1000", help="bytes of a value; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=1, help="so many times 2,000,000 or 400,000 records; default: 1")
    parser.add_argument(
        "--place",
        choices=PLACES,
        default="driver",
        help=f"where rayka's client runs; {ALL}: task and actor are compared with the driver; default: driver",
    )
    parser.add_argument("--load", metavar="JSON", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load:
        print(json.dumps(work_in(*json.loads(chosen.load))), flush=True)
        for thread in [each for each in threading.enumerate() if each.name == COMPILING]:
            thread.join()  # or else the next process begins again
        return
    compared = "task / program, actor / program" if chosen.place == ALL else "rayka / confluent-kafka"
    print(f"{compared} = ratio; cpu: processor seconds for each million records", flush=True)
    os.environ[RAY_MEMORY_MONITOR] = "0"  # held memory must not make Ray end the broker's processes
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rayka-python-"))
        broker = stack.enter_context(Rayka(Path(directory)))
        stack.enter_context(machine.most_held())
        print(machine.rates(Path(directory)), flush=True)
        stack.enter_context(second_node(broker) if chosen.place == "node" else contextlib.nullcontext())
        for what in chosen.only.split(","):
            for size in (100,) if what == "one" else map(int, chosen.sizes.split(",")):
                compare(broker, what, size, chosen.rounds, chosen.times, chosen.place)


if __name__ == "__main__":
    main()
