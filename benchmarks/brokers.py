"""rayka and Apache Kafka as the same four verbs: start, stop, kill, and the processes they consist of."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

from benchmarks import processes

CACHE = Path(os.environ.get("RAYKA_BENCH_CACHE", "~/.cache/rayka-bench")).expanduser()
KAFKA_VERSION = "4.4.0"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""

# For both brokers: a new group does not wait for more members, and a consumer that crashed is noticed soon.
GROUPS = (
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.session.timeout.ms=10000",
    "group.consumer.session.timeout.ms=10000",
)

LOG4J = """\
rootLogger.level=WARN
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c)%n
"""


def free_port() -> int:
    """Below the ports of outgoing connections: there a client that knocks at a stopped broker may meet itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class Broker(ABC):
    """One broker over one directory; it may be started and stopped many times."""

    name = ""

    def __init__(self, directory: Path, configs: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.configs = (*GROUPS, *configs)
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.mark = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it in the foreground."""

    def launch(self) -> None:
        """Starts the process and returns at once."""
        environment = {**os.environ, processes.MARK: self.mark}
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(
                self.command(), stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def start(self) -> None:
        """Returns when the port is open. Raises TimeoutError, or RuntimeError with the end of its output."""
        self.launch()
        self.await_port()

    def await_port(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended:\n{self.last_output()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise TimeoutError(f"{self.name} did not open its port in {START_TIMEOUT_S:.0f} s:\n{self.last_output()}")

    def last_output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")[-3000:]

    def pids(self) -> list[int]:
        return processes.marked(self.mark)

    def stop(self) -> None:
        """As its user stops it; returns when all its processes are gone."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_TIMEOUT_S)
        processes.await_gone(self.mark, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """kill -9 of all its processes at once."""
        assert self.process is not None
        while pids := self.pids():
            processes.kill(pids, STOP_TIMEOUT_S)
        self.process.wait(STOP_TIMEOUT_S)

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class Rayka(Broker):
    name = "rayka"

    def command(self) -> list[str]:
        command = [sys.executable, "-u", "-m", "rayka.cli.main", "up", "--listen", self.bootstrap]
        command += ["--data-dir", str(self.directory / "data")]
        for config in self.configs:
            command += ["--config", config]
        return command


class Kafka(Broker):
    name = "kafka"

    def command(self) -> list[str]:
        java = [
            "java",
            "-cp",
            f"{kafka_jars()}/*",
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
        ]
        properties = self.directory / "server.properties"
        self.write_settings(properties)
        if not (self.directory / "data" / "meta.properties").exists():
            tool = [*java, "kafka.tools.StorageTool"]
            cluster_id = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True).stdout
            subprocess.run(
                [*tool, "format", "-t", cluster_id.strip(), "-c", str(properties)], check=True, capture_output=True
            )
        return [*java, "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "kafka.Kafka", str(properties)]

    def write_settings(self, properties: Path) -> None:
        settings = SERVER_PROPERTIES.format(
            port=self.port, controller_port=free_port(), data=self.directory / "data"
        ) + "\n".join(self.configs)
        if not properties.exists():
            properties.write_text(settings)
            (self.directory / "log4j2.properties").write_text(LOG4J)


def kafka_jars() -> Path:
    """The folder of the server's jars; the first time Maven brings them from Maven Central."""
    folder = CACHE / f"kafka-{KAFKA_VERSION}"
    complete = folder / ".complete"
    if not complete.exists():
        print(f"Apache Kafka {KAFKA_VERSION} comes from Maven Central to {folder}", file=sys.stderr)
        pom = Path(__file__).with_name("pom.xml")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True)
        complete.touch()
    return folder


BROKERS: dict[str, type[Broker]] = {Rayka.name: Rayka, Kafka.name: Kafka}
