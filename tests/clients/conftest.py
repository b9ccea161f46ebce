"""One broker for all tests of this folder, one instance of each client, and topics of each test's own.

`RAYKA_TEST_BOOTSTRAP=HOST:PORT` runs the tests against a broker that is already there, Apache Kafka for example.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayka.testing import BrokerProcess
from tests.clients import tools
from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.kcat import Kcat
from tests.clients.adapters.piped import JavaClient, KafkaJS, Piped

CLIENTS: dict[str, Callable[[str], Any]] = {
    adapter.name: adapter for adapter in (Confluent, KafkaPython, Aiokafka, Kcat, KafkaJS, JavaClient)
}


# Groups that notice soon who is gone, share groups that keep their locks however slow the machine is, and a broker that
# deletes no records by age, since tests write old timestamps.
# Give a broker of RAYKA_TEST_BOOTSTRAP the same.
GROUP_SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.session.timeout.ms=3000",
    "group.consumer.min.heartbeat.interval.ms=300",
    "group.consumer.heartbeat.interval.ms=300",
    "group.share.min.heartbeat.interval.ms=300",
    "group.share.heartbeat.interval.ms=300",
    "group.share.min.record.lock.duration.ms=1000",
    "group.share.max.record.lock.duration.ms=600000",
    "group.share.record.lock.duration.ms=600000",
    "offsets.topic.num.partitions=4",
    "share.coordinator.state.topic.num.partitions=4",
    "log.retention.check.interval.ms=86400000",
)


@pytest.fixture(scope="package")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the broker under test keeps its logs."""
    given = os.environ.get("RAYKA_TEST_DATA_DIR")
    if not given and os.environ.get("RAYKA_TEST_BOOTSTRAP"):
        pytest.skip("RAYKA_TEST_DATA_DIR does not say where the broker of RAYKA_TEST_BOOTSTRAP keeps its logs")
    return Path(given) if given else tmp_path_factory.mktemp("rayka-data")


@pytest.fixture(scope="package")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    given = os.environ.get("RAYKA_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with BrokerProcess(request.getfixturevalue("data_dir"), GROUP_SETTINGS) as broker:
        yield broker.bootstrap


def require(bring: Callable[[], Any]) -> Any:
    """What `bring` returns; a missing tool skips the test with the reason, except in CI, where it is an error."""
    try:
        return bring()
    except tools.ToolMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="package")
def clients(bootstrap: str) -> Iterator[Callable[[str], Any]]:
    """`clients(name)` is the one instance of that client for the session."""
    started: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in started:
            started[name] = require(lambda: CLIENTS[name](bootstrap))
        return started[name]

    yield get
    for client in started.values():
        if isinstance(client, Piped):
            client.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, clients: Callable[[str], Any]) -> Any:
    """For `@pytest.mark.parametrize("client", NAMES, indirect=True)`."""
    return clients(request.param)


@pytest.fixture(scope="package")
def confluent(bootstrap: str) -> Confluent:
    return Confluent(bootstrap)


@pytest.fixture(scope="package")
def kcat(clients: Callable[[str], Any]) -> Kcat:
    program: Kcat = clients(Kcat.name)
    return program


Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(bootstrap: str) -> Tool:
    """`tool(name, *arguments, stdin="")` runs Kafka's tool on the broker; what it prints. It must succeed."""
    require(tools.kafka_tools)

    def run(name: str, *arguments: str, stdin: str = "", server: bool = True) -> str:
        target = ["--bootstrap-server", bootstrap] if server else []
        return tools.succeed(*tools.java("-Xmx256m", name, *target, *arguments), stdin=stdin)

    return run


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return unique(request.node.name)


@pytest.fixture
def topic(topic_name: str, confluent: Confluent) -> str:
    """A new topic of one partition."""
    confluent.create_topic(topic_name)
    return topic_name


@pytest.fixture
def new_topic(topic_name: str, confluent: Confluent) -> Callable[..., str]:
    """`new_topic(partitions=1, **{"config.name": "value"})` creates this test's topic."""

    def create(partitions: int = 1, **configs: str) -> str:
        confluent.create_topic(topic_name, partitions, configs)
        return topic_name

    return create


def unique(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]", "-", text)[:100] + "-" + uuid.uuid4().hex[:8]


@pytest.fixture(scope="package")
def broker_id(confluent: Confluent) -> int:
    return next(iter(confluent.admin.list_topics(timeout=30).brokers))
