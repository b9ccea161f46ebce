"""kill -9 of partition leaders, share coordinators and share consumers under load.

The invariants of share groups hold: what was confirmed never comes back, no record is delivered more often than the
limit, and each one is done in the end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from rayka.testing import BrokerProcess, wait_until
from tests.faults.load import Writer, create_topic, read_all
from tests.support.scale import rounds

PARTITIONS = 2
MEMBERS = 3
LOCK_S = 2.0
DELIVERY_LIMIT = 5
RECOVERY_S = 30.0
STATE_TOPIC = "__share_group_state"
SETTINGS = (
    "partition.actors.per.node=3",
    "group.share.min.heartbeat.interval.ms=500",
    "group.share.heartbeat.interval.ms=500",
    "group.share.min.record.lock.duration.ms=1000",
    f"group.share.record.lock.duration.ms={int(LOCK_S * 1000)}",
    "share.coordinator.state.topic.num.partitions=2",
    "offsets.topic.num.partitions=2",
)

RecordId = tuple[int, int]


class Delivery(NamedTuple):
    """One record that a member got, for the how-manieth time, from a poll that began at a time."""

    record: RecordId
    delivery_count: int
    begun: float


class Members:
    """Share consumers in processes of their own."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, directory: Path) -> None:
        self._arguments = (broker.bootstrap, group, topic)
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(MEMBERS):
            self.start_one()

    def start_one(self) -> None:
        file = self._directory / f"member-{len(list(self._directory.iterdir()))}"
        command = [sys.executable, "-m", "tests.faults.share_member", *self._arguments, str(file)]
        file.touch()
        self._processes.append(subprocess.Popen(command))

    def kill_one(self) -> None:
        """kill -9 of the oldest member; another one joins."""
        victim = self._processes.pop(0)
        victim.kill()
        victim.wait(10)
        self.start_one()

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def lines(self, kind: str) -> Iterator[list[str]]:
        """The lines of a kind; the last line of a member that was killed may be cut."""
        for file in self._directory.iterdir():
            for line in file.read_text().splitlines(keepends=True):
                words = line.split()
                if words[:1] == [kind] and line.endswith("\n"):
                    yield words[1:]

    @property
    def deliveries(self) -> list[Delivery]:
        return [
            Delivery((int(partition), int(offset)), int(count), float(begun))
            for partition, offset, count, begun in self.lines("got")
        ]

    def is_idle(self) -> bool:
        """Whether nothing was delivered for longer than a lock lasts."""
        return time.monotonic() - max(delivery.begun for delivery in self.deliveries) > 2 * LOCK_S

    @property
    def confirmed(self) -> dict[RecordId, float]:
        """When each record was first confirmed to be done."""
        found: dict[RecordId, float] = {}
        for partition, offset, at in self.lines("done"):
            record = int(partition), int(offset)
            found[record] = min(float(at), found.get(record, float(at)))
        return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("share-groups"), SETTINGS) as started:
        yield started


def set_up(broker: BrokerProcess, name: str) -> None:
    """A topic, and a group of the same name that reads it from the beginning."""
    create_topic(broker.bootstrap, name, PARTITIONS)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def more_confirmed(members: Members) -> None:
    """Until 200 more records are confirmed."""
    wanted = len(members.confirmed) + 200
    wait_until(lambda: len(members.confirmed) >= wanted, RECOVERY_S, f"{wanted} confirmed records")


def nothing_left(broker: BrokerProcess, name: str) -> None:
    """A new member gets nothing, even after all locks have expired."""
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": name, "log_level": 0})
    consumer.subscribe([name])
    try:
        end = time.monotonic() + 2 * LOCK_S
        while time.monotonic() < end:
            late = [(record.partition(), record.offset(), record.delivery_count()) for record in consumer.poll(0.5)]
            assert not late, f"{len(late)} records came late, such as {late[0]}"
    finally:
        consumer.close()


def check(members: Members, written: set[RecordId]) -> None:
    """The invariants, over what the members wrote down."""
    confirmed = members.confirmed
    counts: dict[RecordId, int] = defaultdict(int)
    for delivery in members.deliveries:
        counts[delivery.record] = max(counts[delivery.record], delivery.delivery_count)
        done_at = confirmed.get(delivery.record)
        # A poll may return records that another member has got after their lock expired, while the answer lay ready.
        assert done_at is None or delivery.begun <= done_at + LOCK_S, f"{delivery} after it was done at {done_at}"
    assert max(counts.values()) <= DELIVERY_LIMIT
    assert written <= counts.keys(), f"never delivered: {sorted(written - counts.keys())[:5]}"


@pytest.mark.parametrize("victim", ["partition leader", "share coordinator", "member"])
def test_share_groups_survive_kills(broker: BrokerProcess, tmp_path: Path, victim: str) -> None:
    name = f"share-{victim.replace(' ', '-')}"
    set_up(broker, name)
    kills: dict[str, Callable[[int], None]] = {
        "partition leader": lambda number: broker.leader(name, number % PARTITIONS).kill(),
        "share coordinator": lambda number: broker.leader(STATE_TOPIC, number % 2).kill(),
        "member": lambda _: members.kill_one(),
    }
    writer = Writer(broker.bootstrap, name, PARTITIONS)
    members = Members(broker, name, name, tmp_path)
    try:
        more_confirmed(members)
        for number in range(rounds(2, 34)):
            kills[victim](number)
            more_confirmed(members)
        writer.finish()
        records = read_all(broker.bootstrap, name, PARTITIONS)
        written = {(partition, offset) for partition, found in records.items() for offset, _ in found}
        wait_until(members.is_idle, RECOVERY_S, "no record is delivered any more")
    finally:
        members.stop()
    nothing_left(broker, name)
    check(members, written)
