"""Write records on actor handles and read them back, without the Kafka protocol.

The producer batches and compresses; `get()` waits until a record is acknowledged. The consumer is not in a group: it
assigns all partitions to itself and reads them from the beginning.
"""

from __future__ import annotations

import itertools
import tempfile

import rayka

COUNT = 20_000

with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
    cluster.admin().create_topic("events", partitions=4)
    with cluster.producer(linger_ms=5, compression_type="lz4") as producer:
        for number in range(COUNT - 1):
            producer.send("events", b"record %d" % number, key=b"user-%d" % (number % 100))
        last = producer.send("events", b"the last one", headers=[("source", b"example")]).get(60)
    print(f"the last record is at offset {last.offset} of {last.topic}-{last.partition}")

    with cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=60_000) as consumer:
        consumer.assign([("events", partition) for partition in range(4)])
        count = 0
        for count, record in enumerate(itertools.islice(consumer, COUNT), 1):
            if count % 5_000 == 1:
                print(f"{record.topic}-{record.partition} at {record.offset}: {record.key!r} -> {record.value!r}")
    print(f"{count} records read")
    assert count == COUNT
