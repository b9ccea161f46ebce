"""kill -9 of the processes that share groups depend on, under load: each record is acknowledged once for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from rayka.client.kafka.cluster import KafkaCluster
from rayka.client.kafka.share_groups import KafkaShareGroupAdmin
from rayka.testing import BrokerProcess, wait_until
from tests.clients.conftest import GROUP_SETTINGS
from tests.faults.load import RECOVERY_S, Writer, create_topic
from tests.support.scale import rounds

PARTITIONS = 4
MOST_IN_HAND = 50
"""Records whose acknowledgement is in flight at a kill: of these nobody is told whether it counts."""
QUIET_S = 3.0
"""Longer than a lock, and than a new member needs to get its partitions."""
SEVERAL = ("partition.actors.per.node=3", *GROUP_SETTINGS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With several partition actors: leaders, group coordinators and share coordinators are in different processes."""
    with BrokerProcess(tmp_path_factory.mktemp("shares"), SEVERAL) as started:
        yield started


class Worker:
    """A member of the share group. `confirmed` has what the broker said is acknowledged; of what was `sent` besides,
    an answer may have been lost with a process.
    """

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.sent: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.failure: BaseException | None = None
        self._conf = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": MOST_IN_HAND,
            "log_level": 0,
        }
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with closing(ShareConsumer(self._conf)) as consumer:
                consumer.subscribe([self._topic])
                while not self._stop.is_set():
                    self._work(consumer)
        except BaseException as failure:
            self.failure = failure

    def _work(self, consumer: ShareConsumer) -> None:
        records = [record for record in consumer.poll(0.2) if record.error() is None]
        for record in records:
            consumer.acknowledge(record)
        self.sent.update(record.value() or b"" for record in records)
        try:
            results = consumer.commit_sync(10)
        except KafkaException:
            return
        good = {(at.topic, at.partition) for at, error in results.items() if error is None}
        self.confirmed.update(
            record.value() or b"" for record in records if (record.topic(), record.partition()) in good
        )

    def finish(self) -> None:
        """Leave the group."""
        self._stop.set()
        self._thread.join(RECOVERY_S)
        assert not self._thread.is_alive()
        assert self.failure is None, repr(self.failure)


def configure(bootstrap: str, group: str) -> None:
    """The group reads from the beginning, and soon gets back what a dead leader had lent."""
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": "1000",
        "share.delivery.count.limit": "10",
    }
    entries = [ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET) for name, text in settings.items()]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(RECOVERY_S)


def redelivered(bootstrap: str, group: str, topic: str) -> list[bytes]:
    """What a new member of the group gets."""
    with closing(ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})) as consumer:
        consumer.subscribe([topic])
        return [record.value() or b"" for record in consumer.poll(QUIET_S) if record.error() is None]


def test_each_record_is_acknowledged_for_good_while_processes_are_killed(broker: BrokerProcess) -> None:
    topic = group = "queue"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    configure(broker.bootstrap, group)
    writer = Writer(broker.bootstrap, topic, PARTITIONS, 0.002)
    workers = [Worker(broker.bootstrap, group, topic) for _ in range(2)]

    def confirmed() -> set[bytes]:
        return set().union(*(worker.confirmed.copy() for worker in workers))

    def so_far() -> str:
        return f"records are acknowledged: {len(confirmed())}, failed {[worker.failure for worker in workers]}"

    wait_until(lambda: len(confirmed()) > 100, RECOVERY_S, so_far)
    for number in range(rounds(3, 100)):
        broker.kill_one("ray::PartitionActor", number)
        wanted = len(confirmed()) + 300
        wait_until(lambda wanted=wanted: len(confirmed()) >= wanted, RECOVERY_S, so_far)
    writer.finish()
    written = set(writer.acknowledged.values())
    with KafkaCluster(broker.bootstrap) as cluster:
        admin = KafkaShareGroupAdmin(cluster)

        def lags() -> list[int]:
            return [one.lag for one in admin.offsets(group)]

        wait_until(lambda: lags() == [0] * PARTITIONS, RECOVERY_S, lambda: f"no lag is left: {lags()}")
    for worker in workers:
        worker.finish()
    unanswered = set().union(*(worker.sent for worker in workers)) - confirmed()
    assert written <= confirmed() | unanswered, "a record was skipped"
    assert len(unanswered) < len(written) / 4, f"{len(unanswered)} of {len(written)}"
    assert redelivered(broker.bootstrap, group, topic) == []
