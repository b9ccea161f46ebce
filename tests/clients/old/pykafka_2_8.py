"""pykafka 2.8.0 (2018), told that the broker is of version 0.8.2, 0.9.0 or 0.10.0."""

from __future__ import annotations

import sys

from pykafka import KafkaClient
from pykafka.common import CompressionType, OffsetType
from serve import item, pairs, serve

CODECS = {
    "none": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
}


class Client:
    def __init__(self, bootstrap, broker_version):
        self.client = KafkaClient(hosts=bootstrap, broker_version=broker_version)

    def topic(self, name):
        self.client.update_cluster()
        return self.client.topics[name]

    def produce(self, topic, partition, codec, acks, records):
        wanted = self.topic(topic).partitions[partition]
        offsets = []
        with self.topic(topic).get_producer(
            compression=CODECS[codec],
            required_acks=acks,
            linger_ms=10,
            delivery_reports=True,
            partitioner=lambda partitions, key: wanted,
        ) as producer:
            for key, value in pairs(records):
                producer.produce(value, partition_key=key)
            for _ in records:
                message, error = producer.get_delivery_report(timeout=120)
                if error is not None:
                    raise error
                offsets.append(message.offset)
        return sorted(offsets)

    def fetch(self, topic, partition, offset, count):
        consumer = self.topic(topic).get_simple_consumer(
            partitions=[self.topic(topic).partitions[partition]],
            auto_offset_reset=OffsetType.EARLIEST,
            reset_offset_on_start=True,
            consumer_timeout_ms=60_000,
        )
        found = []
        try:
            while len(found) < count and (one := consumer.consume()) is not None:
                if one.offset >= offset:
                    found.append(item(one.offset, one.partition_key, one.value))
        finally:
            consumer.stop()
        return found

    def offsets(self, topic, partition):
        found = self.topic(topic)
        return [
            answer[partition].offset[0]
            for answer in (found.earliest_available_offsets(), found.latest_available_offsets())
        ]


serve(Client(*sys.argv[1:]))
