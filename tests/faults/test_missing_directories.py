"""Log directories that are missing, moved or renumbered: their partitions are offline, never empty logs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer

from rayka.testing import BrokerProcess, wait_until
from tests.faults.load import Writer, check, create_topic, read_all

PARTITIONS = 4


def configs(*log_dirs: Path) -> tuple[str, ...]:
    return ("partition.actors.per.node=2", "warm.partition.actors=2", f"log.dirs={','.join(map(str, log_dirs))}")


def written(tmp_path: Path, *log_dirs: Path) -> Writer:
    """A topic with partitions in both directories, written and stopped cleanly."""
    with BrokerProcess(tmp_path / "data", configs(*log_dirs)) as broker:
        create_topic(broker.bootstrap, "events", PARTITIONS)
        writer = Writer(broker.bootstrap, "events", PARTITIONS)
        wait_until(lambda: writer.count >= 500, 20, "500 acknowledged records")
        writer.finish()
    assert {path.parent.parent for path in tmp_path.glob("disk*/*/events-*")} == set(log_dirs)
    return writer


def status(broker: BrokerProcess) -> dict[str, list[dict[str, object]]]:
    command = [sys.executable, "-m", "rayka.cli.main", "status", "--json", "--data-dir", str(broker.data_dir)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, list[dict[str, object]]] = json.loads(answer.stdout)
    return found


def offline(broker: BrokerProcess) -> list[object]:
    return [each["partition"] for each in status(broker)["partitions"] if each["leader"] is None]


def test_partitions_of_a_missing_directory_are_offline_and_come_back_with_it(tmp_path: Path) -> None:
    disks = tmp_path / "disk1", tmp_path / "disk2"
    writer = written(tmp_path, *disks)
    away = tmp_path / "unmounted"
    disks[1].rename(away)
    with BrokerProcess(tmp_path / "data", configs(*disks)) as broker:
        gone = offline(broker)
        assert len(gone) == PARTITIONS // 2
        for partition in gone:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000})
            errors: list[object] = []
            producer.produce("events", b"x", partition=partition, callback=lambda error, _: errors.append(error))  # noqa: B023
            assert producer.flush(10) == 0
            assert errors[0] is not None, "an empty log acknowledged a record"
    shutil.rmtree(disks[1], ignore_errors=True)
    away.rename(disks[1])
    with BrokerProcess(tmp_path / "data", configs(*disks)) as broker:
        assert offline(broker) == []
        check([writer], read_all(broker.bootstrap, "events", PARTITIONS))


def test_directories_in_another_order_are_found(tmp_path: Path) -> None:
    disks = tmp_path / "disk1", tmp_path / "disk2"
    writer = written(tmp_path, *disks)
    with BrokerProcess(tmp_path / "data", configs(tmp_path / "disk3", *reversed(disks))) as broker:
        check([writer], read_all(broker.bootstrap, "events", PARTITIONS))


def test_a_partition_whose_files_are_gone_is_offline_and_comes_back_with_them(tmp_path: Path) -> None:
    disks = tmp_path / "disk1", tmp_path / "disk2"
    writer = written(tmp_path, *disks)
    (path,) = tmp_path.glob("disk*/*/events-0")
    path.rename(tmp_path / "moved")
    with BrokerProcess(tmp_path / "data", configs(*disks)) as broker:
        wait_until(lambda: offline(broker) == [0], 20, "the partition is reported lost")
        assert not path.exists()
    (tmp_path / "moved").rename(path)
    with BrokerProcess(tmp_path / "data", configs(*disks)) as broker:
        wait_until(lambda: offline(broker) == [], 20, "the partition is found again")
        check([writer], read_all(broker.bootstrap, "events", PARTITIONS))


def test_an_older_metadata_log_deletes_nothing(tmp_path: Path) -> None:
    """The controller's directory is put back to a copy from before the topic was created."""
    disk = tmp_path / "disk1"
    with BrokerProcess(tmp_path / "data", configs(disk)):
        pass
    shutil.copytree(tmp_path / "data" / "controller", tmp_path / "old")
    with BrokerProcess(tmp_path / "data", configs(disk)) as broker:
        create_topic(broker.bootstrap, "events", 1)
        writer = Writer(broker.bootstrap, "events", 1)
        wait_until(lambda: writer.count >= 100, 20, "100 acknowledged records")
        writer.finish()
    (tmp_path / "data" / "controller").rename(tmp_path / "new")
    (tmp_path / "old").rename(tmp_path / "data" / "controller")
    with BrokerProcess(tmp_path / "data", configs(disk)) as broker:
        (stray,) = status(broker)["strays"]
        assert "events-0" in str(stray)
    shutil.rmtree(tmp_path / "data" / "controller")
    (tmp_path / "new").rename(tmp_path / "data" / "controller")
    with BrokerProcess(tmp_path / "data", configs(disk)) as broker:
        check([writer], read_all(broker.bootstrap, "events", 1))
