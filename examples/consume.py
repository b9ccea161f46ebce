"""Read records on actor handles: starts a broker in this program, or joins the one at the address given."""

from __future__ import annotations

import sys

import rayka

with (
    rayka.connect(sys.argv[1]) if len(sys.argv) > 1 else rayka.start() as cluster,
    cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=1000) as consumer,
):
    partitions = consumer.partitions_for_topic("events") or ()
    consumer.assign([("events", partition) for partition in partitions])
    count = 0
    for count, record in enumerate(consumer, 1):
        if count % 10_000 == 1:
            print(f"{record.topic}-{record.partition} at {record.offset}: {record.key} -> {record.value}")
    print(f"{count} records")
