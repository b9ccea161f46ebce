"""What `rayka consume --group` says when the group does not take the member."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from rayka.cli.commands.consume import ConsumeOptions
from rayka.cli.exits import CliError
from rayka.cli.kafka.records import RecordPrinter


class Refusal:
    """An error of the whole consumer, as librdkafka reports it: a message without a topic."""

    def topic(self) -> None: ...
    def partition(self) -> None: ...
    def offset(self) -> None: ...
    def error(self) -> KafkaError:
        return KafkaError(
            KafkaError.INCONSISTENT_GROUP_PROTOCOL, "JoinGroup failed: Broker: Inconsistent group protocol"
        )


class Refused:
    """A consumer whose group does not take it."""

    def consume(self, *_: object) -> list[Refusal]:
        return [Refusal()]


def test_an_error_of_the_group_names_no_partition() -> None:
    wanted = ConsumeOptions(("events",), False, (), "earliest", "jobs", None, True, "read_uncommitted")
    consumer: Any = Refused()
    with pytest.raises(CliError, match=r"^cannot read as a member of jobs: JoinGroup failed: Broker: Inconsistent"):
        RecordPrinter(lambda _: b"", wanted).take(consumer)
