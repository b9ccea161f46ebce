"""Clients from before 2017: libraries of then, and librdkafka as it speaks to brokers of then."""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Consumer

from tests.clients import tools
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.piped import Piped


class OldConfluent(Confluent):
    """librdkafka that is told how old its broker is, and does not ask it."""

    def __init__(self, bootstrap: str, broker_version: str) -> None:
        super().__init__(bootstrap)
        self.name = f"librdkafka for {broker_version}"
        self.fallback = {"api.version.request": False, "broker.version.fallback": broker_version}

    def producer(self, settings: dict[str, Any]) -> Any:
        return super().producer({**settings, **self.fallback, "enable.idempotence": False})

    def consumer(self, **settings: Any) -> Consumer:
        return super().consumer(**settings, **self.fallback)


class OldPython(Piped):
    """A script of tests/clients/old with a library of its time."""

    def __init__(self, script: str, requirement: str, *arguments: str) -> None:
        library = tools.old_python_client(requirement)
        command = [sys.executable, str(tools.HERE / "old" / script), *arguments]
        super().__init__(command, tools.environment(PYTHONPATH=str(library)))


def kafka_python_0_9(bootstrap: str) -> OldPython:
    return OldPython("kafka_python_0_9.py", "kafka-python==0.9.5", bootstrap)


def kafka_python_1_0(bootstrap: str) -> OldPython:
    return OldPython("kafka_python_1_0.py", "kafka-python==1.0.2", bootstrap)


def pykafka(bootstrap: str, broker_version: str) -> OldPython:
    return OldPython("pykafka_2_8.py", "pykafka==2.8.0", bootstrap, broker_version)
