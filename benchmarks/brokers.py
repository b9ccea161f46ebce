"""rayka and Apache Kafka, each in processes of its own, with the same settings where both have them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from rayka.testing import BrokerProcess, ServerProcess, cpu_s, free_port, has_ended, title

CACHE = Path(os.environ.get("RAYKA_BENCH_CACHE", "~/.cache/rayka-bench")).expanduser()
KAFKA_VERSION = "4.4.0"
SPARK_JARS = CACHE / "spark-kafka-3.5.7"

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

# For both brokers: a new group does not wait for more members, a consumer that crashed is noticed soon, and a log that
# is to be compacted soon too.
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.session.timeout.ms=10000",
    "group.consumer.session.timeout.ms=10000",
    "log.cleaner.backoff.ms=1000",
)

# What kafka-server-start.sh and kafka-run-class.sh of Kafka 4.4 set when nobody sets anything else.
JVM_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

# What Ray runs beside the actors.
RAYS_OWN = (
    "raylet/raylet",
    "gcs_server",
    "/dashboard/",
    "log_monitor.py",
    "autoscaler/_private/monitor",
    "runtime_env",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    "ray::IDLE",
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


class Rayka(BrokerProcess):
    """`rayka up`; its logs lie in `directory`/data. `measures` names those that it takes part in; None means all."""

    measures: tuple[str, ...] | None = None

    def __init__(self, directory: Path, configs: tuple[str, ...] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "data", (*SETTINGS, *configs), output=directory / "output")
        self.directory = directory

    def own(self) -> list[psutil.Process]:
        """The processes that are not Ray's own."""
        return [process for process in self.processes() if not is_rays_own(process)]


class RaykaWithFourActors(Rayka):
    """As on a machine with 8 cores, where most connections end in another process than their leader's.

    It takes part where that matters.
    """

    name = "rayka-4"
    measures = ("produce-1k", "consume-1k", "latency", "connections", "end-to-end", "groups-commits")

    def __init__(self, directory: Path, configs: tuple[str, ...] = ()) -> None:
        super().__init__(directory, ("partition.actors.per.node=4", *configs))


class Kafka(ServerProcess):
    """Apache Kafka as one node, broker and controller in one process, over `directory`."""

    name = "kafka"
    measures: tuple[str, ...] | None = None

    def __init__(self, directory: Path, configs: tuple[str, ...] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "output")
        self.directory = directory
        self.configs = (*SETTINGS, *configs)

    def own(self) -> list[psutil.Process]:
        """All of its processes: there is one."""
        return self.processes()

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
        return [*java[:1], *JVM_FLAGS, *java[1:], "kafka.Kafka", str(properties)]

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


class CpuClock:
    """The processor time that these processes use from now on.

    Others that start later do not count. Nor does one that ends: nobody can tell what it used at last, and what it had
    used before would be missing.
    """

    def __init__(self, processes: Iterable[psutil.Process]) -> None:
        self._began_s = {process: cpu_s([process]) for process in processes}

    def used_s(self) -> float:
        """In seconds, up to now."""
        return sum(cpu_s([process]) - began_s for process, began_s in self._began_s.items() if not has_ended(process))


def is_rays_own(process: psutil.Process) -> bool:
    """Whether Ray runs this process beside the actors."""
    name = title(process)
    return any(part in name for part in RAYS_OWN)


Broker = Rayka | Kafka
BROKERS: dict[str, type[Rayka] | type[Kafka]] = {each.name: each for each in (Rayka, Kafka, RaykaWithFourActors)}
