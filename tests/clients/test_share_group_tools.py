"""Kafka's own tools on share groups whose members are librdkafka's share consumers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType

from rayka.testing import wait_until
from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import Tool
from tests.clients.record import Record
from tests.clients.test_group_tools import TOOLS, group_id
from tests.support.found_files import found_files
from tests.support.share_members import TIMEOUT_S, consume, member

__all__ = ["group_id"]  # a fixture

SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"


@pytest.fixture
def topic(confluent: Confluent, new_topic: Callable[..., str]) -> str:
    """Ten records in each of two partitions."""
    name = new_topic(partitions=2)
    for partition in (0, 1):
        confluent.produce(name, [Record(None, b"v")] * 10, partition=partition)
    return name


def rows(text: str) -> list[list[str]]:
    """The rows of a tool's table, without its head."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return [words for words in lines if words[0] not in ("GROUP", "TOPIC") and len(words) > 1]


def from_the_beginning(tool: Tool, group_id: str, *configs: str) -> None:
    """The group starts with the first record; it may have other configs."""
    tool(
        CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", group_id,
        "--add-config", ",".join(("share.auto.offset.reset=earliest", *configs)),
    )  # fmt: skip


def test_a_share_group_is_listed_and_described(tool: Tool, bootstrap: str, group_id: str, topic: str) -> None:
    from_the_beginning(tool, group_id)
    with member(bootstrap, group_id, topic) as consumer:
        consume(consumer, 20)
        (words,) = rows(tool(SHARE_GROUPS, "--describe", "--group", group_id, "--members", "--verbose"))
        assert (words[0], words[4], words[6]) == (group_id, "2", f"{topic}:0,1")
        (words,) = rows(tool(SHARE_GROUPS, "--describe", "--group", group_id, "--state", "--verbose"))
        assert (words[0], words[-1], "Stable" in words) == (group_id, "1", True)

        def lags() -> list[str]:
            return [words[-1] for words in rows(tool(SHARE_GROUPS, "--describe", "--group", group_id))]

        wait_until(lambda: lags() == ["0", "0"], TIMEOUT_S, "all records are acknowledged")
    assert group_id in tool(SHARE_GROUPS, "--list").split()
    listed = tool(SHARE_GROUPS, "--list", "--state", "Empty")
    assert re.search(rf"^{group_id}\s+Empty", listed, re.MULTILINE)


def test_offsets_of_a_share_group_are_reset_and_deleted_and_then_the_group(
    tool: Tool, bootstrap: str, group_id: str, topic: str
) -> None:
    from_the_beginning(tool, group_id)
    with member(bootstrap, group_id, topic) as consumer:
        consume(consumer, 20)
        refused = tool(SHARE_GROUPS, "--delete", "--group", group_id)
        assert "is not EMPTY" in refused or "not empty" in refused.lower()
    reset = tool(SHARE_GROUPS, "--reset-offsets", "--group", group_id, "--topic", topic, "--to-earliest", "--execute")
    assert sorted(rows(reset)) == [[group_id, topic, "0", "0"], [group_id, topic, "1", "0"]]
    described = sorted(rows(tool(SHARE_GROUPS, "--describe", "--group", group_id)))
    assert described == [[group_id, topic, "0", "0", "10"], [group_id, topic, "1", "0", "10"]]
    with member(bootstrap, group_id, topic) as consumer:
        consume(consumer, 20)
    assert rows(tool(SHARE_GROUPS, "--delete-offsets", "--group", group_id, "--topic", topic)) == [
        [topic, "Successful"]
    ]
    assert "has no offset information" in tool(SHARE_GROUPS, "--describe", "--group", group_id)
    tool(SHARE_GROUPS, "--delete", "--group", group_id)
    assert group_id not in tool(SHARE_GROUPS, "--list").split()


def test_kafka_reads_the_state_of_records_that_wait_for_their_retry(
    tool: Tool, bootstrap: str, group_id: str, topic: str, data_dir: Path
) -> None:
    from_the_beginning(tool, group_id, "share.retry.backoff.ms=600000")
    with member(bootstrap, group_id, topic, **{"share.acknowledgement.mode": "explicit"}) as consumer:
        released: set[tuple[int | None, int | None]] = set()

        def is_released() -> bool:
            for record in consumer.poll(0.2) or ():
                assert (record.partition(), record.offset()) not in released, "a record that waits was delivered"
                released.add((record.partition(), record.offset()))
                consumer.acknowledge(record, AcknowledgeType.RELEASE)
            consumer.commit_sync(TIMEOUT_S)
            return len(released) == 20

        wait_until(is_released, TIMEOUT_S, "20 records are released")
    files = ",".join(map(str, sorted(found_files(data_dir, "*/__share_group_state-*/*.log"))))
    dumped = tool(TOOLS + "DumpLogSegments", "--files", files, "--share-group-state-decoder", server=False)
    written = [line for line in dumped.splitlines() if f'"groupId":"{group_id}"' in line]
    for partition in (0, 1):
        found = [line for line in written if f'"partition":{partition}' in line]
        assert any('"deliveryState":0,"deliveryCount":1}' in line for line in found), partition
    assert "Could not" not in dumped
