"""How fast a consumer reads old records from the remote store, against local ones: `python -m benchmarks.tiered`.

The same records are in two topics of one broker, one local and one whose older segments are in a directory alone. Each
is read by confluent-kafka from the beginning; the cache of the tiered one holds an eighth of it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import click
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rayka.testing import BrokerProcess, wait_until

_VALUE_BYTES = 1_000
_SEGMENT_BYTES = 32 << 20
_LOCAL_BYTES = 2 * _SEGMENT_BYTES
_COPIED_WITHIN_S = 120.0


def _configs(store: Path, mb: int) -> tuple[str, ...]:
    return (
        "remote.log.storage.system.enable=true",
        f"rsm.config.url=file://{store}",
        "remote.log.manager.task.interval.ms=500",
        "log.retention.check.interval.ms=500",
        f"rsm.config.fetch.chunk.cache.size={mb * 1_000_000 // 8}",
    )


def _produce(bootstrap: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1 << 20})
    value = bytes(_VALUE_BYTES)
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


def _consume(bootstrap: str, topic: str, records: int) -> float:
    """MB/s of values from the first record to the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 20,  # or else the client rests for a second when it has 64 MB
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    started, count = time.monotonic(), 0
    while count < records:
        for message in consumer.consume(100_000, 1.0):
            assert message.error() is None, message.error()
            count += 1
    took_s = time.monotonic() - started
    consumer.close()
    return count * _VALUE_BYTES / took_s / 1e6


@click.command()
@click.option("--mb", default=512, show_default=True, help="Megabytes in each topic.")
@click.option("--rounds", default=3, show_default=True, help="How often each is read.")
def main(mb: int, rounds: int) -> None:
    """Write the topics, wait until the older part of one is in the store alone, and read both in turn."""
    records = mb * 1_000_000 // _VALUE_BYTES
    with tempfile.TemporaryDirectory() as path:
        store = Path(path) / "store"
        with BrokerProcess(Path(path) / "data", _configs(store, mb)) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            tiered = {"remote.storage.enable": "true", "local.retention.bytes": str(_LOCAL_BYTES)}
            for topic, configs in (("local", {}), ("tiered", tiered)):
                configs = {"segment.bytes": str(_SEGMENT_BYTES), "file.delete.delay.ms": "0", **configs}
                admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(30)
                _produce(broker.bootstrap, topic, records)
            most = _LOCAL_BYTES // _SEGMENT_BYTES + 2
            wait_until(lambda: len(list(Path(path).glob("data/**/tiered-0/*.log"))) <= most, _COPIED_WITHIN_S, "copies")
            rates: dict[str, list[float]] = {"local": [], "tiered": []}
            for _ in range(rounds):
                for topic, found in rates.items():
                    found.append(_consume(broker.bootstrap, topic, records))
    local, remote = statistics.median(rates["local"]), statistics.median(rates["tiered"])
    print(f"local {local:.0f} MB/s, tiered {remote:.0f} MB/s: {remote / local:.2f} of local")


if __name__ == "__main__":
    main()
