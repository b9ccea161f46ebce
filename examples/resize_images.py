"""A work queue: images wait in a topic, and a pool of Ray actors makes thumbnails of them.

Each record is leased to one actor. A record that fails for a temporary reason is delivered again later. One that can
never succeed goes to the dead-letter topic with the traceback. When an actor dies, another one gets its records at
once.
"""

from __future__ import annotations

import os
import tempfile

import rayka
from rayka.client import ConfigResource, ResourceType, ShareRecord

COUNT = 200
GROUP = "thumbnails"


class Resizer:
    """Stands for a model or a library that takes long to load: each actor makes one of its own."""

    def __init__(self) -> None:
        self.scale = 4

    def __call__(self, record: ShareRecord) -> None:
        if record.key == b"image-13" and record.delivery_count == 1:
            os._exit(1)  # the whole process dies
        if record.key == b"image-50" and record.delivery_count == 1:
            raise ConnectionError("the image server does not answer")
        width, height = map(int, (record.value or b"").split(b"x"))
        assert width * height // self.scale**2 > 0


with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
    admin = cluster.admin()
    admin.create_topic("images", partitions=1)
    admin.create_topic("dlq.images", partitions=1, configs={"errors.deadletterqueue.group.enable": "true"})
    settings = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.images"}
    admin.alter_configs(ConfigResource(ResourceType.GROUP, GROUP), settings)
    with cluster.producer() as producer:
        for number in range(COUNT):
            size = b"no size" if number == 99 else b"640x480"
            producer.send("images", size, key=b"image-%d" % number)

    with cluster.process("images", GROUP, Resizer, actors=2, delay_ms=200) as pool:
        counts = pool.join(idle_ms=5000)
    print(f"{counts.accepted} thumbnails, {counts.rejected} image that is none, {counts.released} came back")

    with cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=60_000) as consumer:
        consumer.assign([("dlq.images", 0)])
        letter = next(iter(consumer))
    print((dict(letter.headers)["__dlq.errors.message"] or b"").decode())
    assert (counts.accepted, counts.rejected) == (COUNT - 1, 1)
