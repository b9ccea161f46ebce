"""kafka-python 1.0.2 (2016): the client finds out for itself which broker of before 0.10 it speaks to."""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from serve import item, pairs, serve

CODECS = {"none": None, "gzip": "gzip", "snappy": "snappy"}


class Client:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap

    def produce(self, topic, partition, codec, acks, records):
        producer = KafkaProducer(
            bootstrap_servers=[self.bootstrap], acks=acks, linger_ms=20, compression_type=CODECS[codec]
        )
        try:
            sent = [producer.send(topic, value=value, key=key, partition=partition) for key, value in pairs(records)]
            return [future.get(30).offset for future in sent]
        finally:
            producer.close()

    def fetch(self, topic, partition, offset, count):
        consumer = KafkaConsumer(bootstrap_servers=[self.bootstrap], consumer_timeout_ms=60_000)
        try:
            consumer.assign([TopicPartition(topic, partition)])
            consumer.seek(TopicPartition(topic, partition), offset)
            return [item(one.offset, one.key, one.value) for _, one in zip(range(count), consumer)]  # noqa: B905
        finally:
            consumer.close()

    def offsets(self, topic, partition):
        consumer = KafkaConsumer(bootstrap_servers=[self.bootstrap])
        where = TopicPartition(topic, partition)
        try:
            consumer.assign([where])
            found = []
            for seek in (consumer.seek_to_beginning, consumer.seek_to_end):
                seek(where)
                found.append(consumer.position(where))
            return found
        finally:
            consumer.close()


serve(Client(sys.argv[1]))
