"""Clients of other languages: a script that reads one JSON request a line and answers with one JSON line."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from tests.clients import tools
from tests.clients.record import Record, Refused

TIMEOUT_S = 150.0


def to_text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def to_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def encode(record: Record) -> dict[str, Any]:
    return {
        "key": to_text(record.key),
        "value": to_text(record.value),
        "headers": [[name, to_text(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
    }


def decode(item: dict[str, Any]) -> Record:
    headers = tuple((name, to_bytes(value)) for name, value in item["headers"])
    return Record(to_bytes(item["key"]), to_bytes(item["value"]), headers, item["timestamp"], item["offset"])


class Piped:
    """One process for the whole session; `call` is a request and its answer."""

    name = "piped"

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put('{"error": "the client process ended", "code": null}')

    def call(self, operation: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
        self.process.stdin.flush()
        try:
            answer = json.loads(self.answers.get(timeout=TIMEOUT_S))
        except queue.Empty:
            self.process.kill()  # the next request would get this one's answer
            raise AssertionError(f"{self.name} did not answer {operation} {arguments} in {TIMEOUT_S} s") from None
        if "error" in answer:
            raise Refused(answer["code"], answer["error"])
        return answer["ok"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1
    ) -> list[int]:
        offsets: list[int] = self.call(
            "produce",
            topic=topic,
            partition=partition,
            codec=codec,
            acks=acks,
            records=[encode(record) for record in records],
        )
        return offsets if acks else []

    def fetch(self, topic: str, *, partition: int = 0, offset: int = 0, count: int) -> list[Record]:
        answer = self.call("fetch", topic=topic, partition=partition, offset=offset, count=count)
        assert len(answer) == count, f"{len(answer)} of {count} records came"
        return [decode(item) for item in answer]

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        low, high = self.call("offsets", topic=topic, partition=partition)
        return low, high

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        found: int | None = self.call("offset_for_time", topic=topic, partition=partition, timestamp=timestamp)
        return found

    def create_topic(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        self.call("create_topic", topic=topic, partitions=partitions, configs=configs or {})

    def delete_topic(self, topic: str) -> None:
        self.call("delete_topic", topic=topic)

    def topics(self) -> set[str]:
        return set(self.call("topics"))

    def partition_count(self, topic: str) -> int:
        return int(self.call("partition_count", topic=topic))

    def create_partitions(self, topic: str, total: int) -> None:
        self.call("create_partitions", topic=topic, total=total)

    def topic_configs(self, topic: str) -> dict[str, str]:
        configs: dict[str, str] = self.call("topic_configs", topic=topic)
        return configs

    def alter_topic_configs(self, topic: str, configs: dict[str, str]) -> None:
        self.call("alter_topic_configs", topic=topic, configs=configs)

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None:
        self.call("delete_records", topic=topic, partition=partition, before_offset=before_offset)


class KafkaJS(Piped):
    name = "kafkajs"

    def __init__(self, bootstrap: str) -> None:
        modules = tools.kafkajs() / "node_modules"
        script = str(tools.HERE / "js" / "client.js")
        super().__init__(["node", script, bootstrap], tools.environment(NODE_PATH=str(modules)))


class JavaClient(Piped):
    name = "java"

    def __init__(self, bootstrap: str) -> None:
        source = str(tools.HERE / "java" / "Client.java")
        super().__init__(tools.java("-Xmx512m", source, bootstrap))
