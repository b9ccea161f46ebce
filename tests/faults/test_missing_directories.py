"""Log directories that are missing, moved or renumbered: their partitions are offline, never empty logs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from rayka.testing import BrokerProcess, wait_until
from tests.faults.load import RECOVERY_S, Writer, check, create_topic, read_all

PARTITIONS = 4


def configs(*log_dirs: Path) -> tuple[str, ...]:
    return ("partition.actors.per.node=2", "warm.partition.actors=2", f"log.dirs={','.join(map(str, log_dirs))}")


class Written(NamedTuple):
    """A topic with partitions in two directories, left by a clean stop. Each test puts back what it takes away."""

    path: Path
    disks: tuple[Path, Path]
    writer: Writer

    def broker(self, *log_dirs: Path) -> BrokerProcess:
        return BrokerProcess(self.path / "data", configs(*(log_dirs or self.disks)))

    def check(self, broker: BrokerProcess) -> None:
        check([self.writer], read_all(broker.bootstrap, "events", PARTITIONS))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """With `older`, a copy of the controller's directory from before the topic was created."""
    path = tmp_path_factory.mktemp("written")
    disks = path / "disk1", path / "disk2"
    with BrokerProcess(path / "data", configs(*disks)) as broker:
        shutil.copytree(path / "data" / "controller", path / "older")
        create_topic(broker.bootstrap, "events", PARTITIONS)
        writer = Writer(broker.bootstrap, "events", PARTITIONS)
        writer.await_more(500)
        writer.finish()
    assert {found.parent.parent for found in path.glob("disk*/*/events-*")} == set(disks)
    return Written(path, disks, writer)


def status(broker: BrokerProcess) -> dict[str, list[dict[str, object]]]:
    command = [sys.executable, "-m", "rayka.cli.main", "status", "--json", "--data-dir", str(broker.data_dir)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=RECOVERY_S, check=False)
    assert answer.stdout, answer.stderr
    found: dict[str, list[dict[str, object]]] = json.loads(answer.stdout)
    return found


def offline(broker: BrokerProcess) -> list[object]:
    return [each["partition"] for each in status(broker)["partitions"] if each["leader"] is None]


def await_offline(broker: BrokerProcess, count: int) -> list[object]:
    """Wait until so many partitions are offline, and return which."""
    found: list[object] = []

    def are_offline() -> bool:
        found[:] = offline(broker)
        return len(found) == count

    wait_until(are_offline, RECOVERY_S, lambda: f"{count} partitions are offline, not {found}")
    return found


def test_partitions_of_a_missing_directory_or_without_files_are_offline_and_come_back_with_them_in_any_order(
    written: Written,
) -> None:
    disk1, disk2 = written.disks
    on_disk2 = {int(path.name.removeprefix("events-")) for path in disk2.glob("*/events-*")}
    path = min(disk1.glob("*/events-*"))
    alone = int(path.name.removeprefix("events-"))
    disk2.rename(written.path / "unmounted")
    path.rename(written.path / "moved")
    with written.broker() as broker:
        assert set(await_offline(broker, len(on_disk2) + 1)) == {*on_disk2, alone}
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000})
        errors: list[object] = []
        for partition in (*on_disk2, alone):
            producer.produce("events", b"x", partition=partition, callback=lambda error, _: errors.append(error))
        assert producer.flush(RECOVERY_S) == 0
        # By identity: to compare a KafkaError with None leaves an exception behind.
        assert [error is None for error in errors] == [False] * (len(on_disk2) + 1), (
            "an empty log acknowledged a record"
        )
        assert not path.exists()
    shutil.rmtree(disk2, ignore_errors=True)
    (written.path / "unmounted").rename(disk2)
    (written.path / "moved").rename(path)
    with written.broker(written.path / "disk3", disk2, disk1) as broker:
        await_offline(broker, 0)
        written.check(broker)


def test_an_older_metadata_log_deletes_nothing(written: Written) -> None:
    """The controller's directory is put back to a copy from before the topic was created."""
    controller = written.path / "data" / "controller"
    controller.rename(written.path / "newer")
    (written.path / "older").rename(controller)
    with written.broker() as broker:
        wait_until(
            lambda: sum("events-" in str(stray) for stray in status(broker)["strays"]) == PARTITIONS,
            RECOVERY_S,
            lambda: f"all are strays: {status(broker)['strays']}",
        )
    shutil.rmtree(controller)
    (written.path / "newer").rename(controller)
    with written.broker() as broker:
        written.check(broker)
