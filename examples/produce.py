"""Write records on actor handles: starts a broker in this program, or joins the one at the address given."""

from __future__ import annotations

import sys

import rayka

with rayka.connect(sys.argv[1]) if len(sys.argv) > 1 else rayka.start() as cluster:
    with cluster.producer(linger_ms=5, compression_type="lz4") as producer:
        for number in range(100_000):
            producer.send("events", b"record %d" % number, key=b"user-%d" % (number % 100))
        last = producer.send("events", b"the last one", headers=[("source", b"examples/produce.py")]).get()
    print(f"the last record is at offset {last.offset} of {last.topic}-{last.partition}")
    print(f"Kafka clients find it at {cluster.bootstrap_servers}")
