"""A share consumer in a process of its own that writes down what it got and what was confirmed.

    python -m tests.faults.share_member BOOTSTRAP GROUP TOPIC FILE

Each line of the file is `got PARTITION OFFSET DELIVERY_COUNT TIME`, with the time before the poll, or `done PARTITION
OFFSET`, with the time after the commit; times are in seconds of the machine's monotonic clock. One record in ten is
released until its third delivery, one in ten is rejected, the others are accepted.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

RELEASED_UNTIL = 3
COMMIT_TIMEOUT_S = 10.0


def acknowledgement(record: Message) -> AcknowledgeType:
    """What to say of a record: the same whoever gets it."""
    kind = (record.offset() or 0) % 10
    if kind == 0 and (record.delivery_count() or 0) < RELEASED_UNTIL:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.REJECT if kind == 1 else AcknowledgeType.ACCEPT


def step(consumer: ShareConsumer, file: TextIO) -> None:
    """Get records, acknowledge each, and commit."""
    begun = time.monotonic()
    records = [record for record in consumer.poll(0.5) if record.error() is None]
    said = [(record, acknowledgement(record)) for record in records]
    for record, kind in said:
        print("got", record.partition(), record.offset(), record.delivery_count(), begun, file=file)
        consumer.acknowledge(record, kind)
    file.flush()
    if said:
        confirm(consumer, said, file)


def confirm(consumer: ShareConsumer, said: Sequence[tuple[Message, AcknowledgeType]], file: TextIO) -> None:
    """Commit, and note the records that are done with now."""
    results = consumer.commit_sync(COMMIT_TIMEOUT_S)
    durable = {result.partition for result, error in results.items() if error is None}
    now = time.monotonic()
    for record, kind in said:
        if record.partition() in durable and kind != AcknowledgeType.RELEASE:
            print("done", record.partition(), record.offset(), now, file=file)
    file.flush()


def main(bootstrap: str, group: str, topic: str, path: str) -> None:
    """Consume until SIGTERM."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    with open(path, "a", encoding="ascii") as file:
        consumer = ShareConsumer({**settings, "log_level": 0})
        consumer.subscribe([topic])
        while not stopped:
            try:
                step(consumer, file)
            except KafkaException as error:
                print(error, file=sys.stderr)
        consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
