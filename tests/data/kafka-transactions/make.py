"""Makes this folder anew: `python -m tests.data.kafka-transactions.make`, with Java and Maven.

The broker is Apache Kafka on one node (benchmarks/brokers.py), with transactions that were committed, aborted and left
open when it was stopped. What Kafka's own tool says of them shortly before is kept beside the logs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.brokers import Kafka
from tests.clients import tools

HERE = Path(__file__).parent
TOOL = "org.apache.kafka.tools.TransactionsCommand"
CONFIGS = (
    "transaction.state.log.num.partitions=1",
    "log.index.size.max.bytes=4096",
    "log.cleaner.enable=false",
)
KEPT = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata")
ENDS = {"committed": "commit_transaction", "aborted": "abort_transaction", "open": None}


def fill(bootstrap: str) -> list[Producer]:
    """Two transactions of each kind, and a record after them; the producers have to stay alive."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("events", 1)])["events"].result(60)
    producers = []
    for name, end in ENDS.items():
        settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 60_000}
        producer = Producer(settings)
        producer.init_transactions(60)
        for number in range(2 if end else 1):
            producer.begin_transaction()
            for place in range(3):
                producer.produce("events", f"{name}-{number}-{place}".encode(), partition=0)
            assert producer.flush(60) == 0
            if end:
                getattr(producer, end)(60)
        producers.append(producer)
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce("events", b"after", partition=0)
    assert plain.flush(60) == 0
    return producers


def say(bootstrap: str, *arguments: str) -> str:
    line = tools.java(TOOL, "--bootstrap-server", bootstrap, *arguments)
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def describe(bootstrap: str) -> None:
    """What Kafka says, in its own words, once the last marker is written."""
    while say(bootstrap, "list").count("Complete") < 2:
        time.sleep(0.5)
    said = say(bootstrap, "list") + say(bootstrap, "describe-producers", "--topic", "events", "--partition", "0")
    (HERE / "described.txt").write_text("\n".join(line.rstrip() for line in said.splitlines() if line) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = Kafka(Path(directory), CONFIGS)
        broker.start()
        alive = fill(broker.bootstrap)
        describe(broker.bootstrap)
        broker.stop()
        for name in ("events-0", "__transaction_state-0"):
            copy = HERE / name
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            for pattern in KEPT:
                for file in (Path(directory) / "data" / name).glob(pattern):
                    shutil.copy(file, copy)
        print(f"{len(alive)} producers were cut off")
    os._exit(0)  # they would wait for the broker


if __name__ == "__main__":
    main()
