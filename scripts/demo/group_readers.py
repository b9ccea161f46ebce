"""A consumer group of two members, as any Kafka client forms one: they share a topic and commit what they have read."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

PATIENCE_S = 180


class GroupReaders:
    """Two members of `group`, in one loop. `shares` is how many partitions each had, `failed_commits` counts those
    that found no coordinator: what they were for is committed the next time, or read again."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        self._places = [TopicPartition(topic, partition) for partition in range(partitions)]
        self._members = [
            Consumer({
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": f"reader-{number}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            })
            for number in (1, 2)
        ]  # fmt: skip
        self.shares: list[int] = []
        self.failed_commits = 0
        for member in self._members:
            member.subscribe([topic])

    def read(self) -> Iterator[Message]:
        """Every record at least once; what was handed out is committed before a member reads on.

        Ends when all of the topic is committed. Raises TimeoutError when nothing has come for `PATIENCE_S` before that.
        """
        heard = time.monotonic()
        while True:
            is_idle = True
            for member in self._members:
                for message in member.consume(5_000, 0.1):
                    if message.error() is None:
                        is_idle = False
                        yield message
                    elif message.error().fatal():
                        raise KafkaException(message.error())
                if not is_idle:
                    self._commit(member)
            self._note_shares()
            if not is_idle:
                heard = time.monotonic()
            elif self._is_all_committed():
                return
            elif time.monotonic() - heard > PATIENCE_S:
                raise TimeoutError(f"nothing to read for {PATIENCE_S} s, and not all of it is committed")

    def _commit(self, member: Consumer) -> None:
        try:
            member.commit(asynchronous=False)
        except KafkaException:
            self.failed_commits += 1

    def _note_shares(self) -> None:
        shares = [len(member.assignment()) for member in self._members]
        if sum(shares) == len(self._places) and min(shares) > 0:
            self.shares = shares

    def _is_all_committed(self) -> bool:
        member = self._members[0]
        try:
            committed = member.committed(self._places, 10)
            return all(place.offset == member.get_watermark_offsets(place, 10)[1] for place in committed)
        except KafkaException:
            return False

    def close(self) -> None:
        """Both leave the group."""
        for member in self._members:
            member.close()
