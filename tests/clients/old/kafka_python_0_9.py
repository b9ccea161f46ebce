"""kafka-python 0.9.5 (2015): Produce 0, Fetch 0 and ListOffsets 0, with messages of magic 0."""

from __future__ import annotations

import sys

from kafka import KafkaClient, KafkaConsumer
from kafka.common import OffsetRequest, ProduceRequest
from kafka.protocol import CODEC_GZIP, CODEC_NONE, CODEC_SNAPPY, create_message_set
from serve import item, pairs, serve

CODECS = {"none": CODEC_NONE, "gzip": CODEC_GZIP, "snappy": CODEC_SNAPPY}
EARLIEST, LATEST = -2, -1


class Client:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.client = KafkaClient(bootstrap)

    def produce(self, topic, partition, codec, acks, records):
        self.client.ensure_topic_exists(topic.encode())
        messages = create_message_set([(value, key) for key, value in pairs(records)], CODECS[codec])
        request = ProduceRequest(topic.encode(), partition, messages)
        answers = self.client.send_produce_request([request], acks=acks, timeout=60_000)
        return [answers[0].offset + index for index in range(len(records))] if acks else []

    def fetch(self, topic, partition, offset, count):
        consumer = KafkaConsumer(bootstrap_servers=[self.bootstrap], consumer_timeout_ms=60_000)
        consumer.set_topic_partitions((topic.encode(), partition, offset))
        return [item(one.offset, one.key, one.value) for _, one in zip(range(count), consumer)]  # noqa: B905

    def offsets(self, topic, partition):
        self.client.ensure_topic_exists(topic.encode())
        return [self.list_offsets(topic, partition, when, 1)[0] for when in (EARLIEST, LATEST)]

    def list_offsets(self, topic, partition, when, most):
        (answer,) = self.client.send_offset_request([OffsetRequest(topic.encode(), partition, when, most)])
        return list(answer.offsets)


serve(Client(sys.argv[1]))
