"""A member of a group as a process: what it has read so far, and signals to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

from tests.clients import tools
from tests.clients.members.member import HEARTBEAT_MS, LIBRARIES, METADATA_MS, SESSION_MS

KAFKAJS = "KafkaJS"
KCAT = "kcat"
JAVA = "Java"
JAVA_CONSUMER = "Java-consumer"
CLASSIC = ("confluent-kafka", "kafka-python", "aiokafka", KAFKAJS, KCAT, JAVA)
CONSUMER = ("confluent-kafka-consumer", JAVA_CONSUMER)
LEAVE_TIMEOUT_S = 90.0
LOG = tools.HERE / "java" / "log4j2.properties"
STATIC_SESSION_MS = 50_000
"""An instance has that long to come back: a Java process that starts on a busy machine takes its time."""
LOST_WHILE_COLLECTING = ("No current assignment for partition", "FetchCollector.fetchRecords")
"""What Java's consumer of the consumer protocol says when it ends because of a race of its own (4.3.1).

A member that is fenced loses its partitions in the background thread: without a listener `transitionToFenced` clears
the assignment at once. The application's thread may be in `FetchCollector.fetchRecords` meanwhile, which asks
`SubscriptionState` several times, each time under the lock, but not under one lock: `isAssigned` was true, and then
`position` or `partitionLag` throws IllegalStateException out of `poll`.
"""


def _kcat(bootstrap: str, group: str, topic: str) -> list[str]:
    properties = {"auto.offset.reset": "earliest", "partition.assignment.strategy": "roundrobin"}
    properties |= {"session.timeout.ms": str(SESSION_MS), "heartbeat.interval.ms": str(HEARTBEAT_MS)}
    properties |= {"auto.commit.interval.ms": "200", "topic.metadata.refresh.interval.ms": str(METADATA_MS)}
    options = [word for name, value in properties.items() for word in ("-X", f"{name}={value}")]
    return [tools.kcat(), "-b", bootstrap, *options, "-q", "-u", "-f", "%s\\n", "-G", group, topic]


def _java(bootstrap: str, group: str, topic: str, protocol: str, instance_id: str = "") -> list[str]:
    properties = {"group.protocol": protocol, "auto.commit.interval.ms": "200", "metadata.max.age.ms": str(METADATA_MS)}
    if protocol == "classic":
        session_ms = STATIC_SESSION_MS if instance_id else SESSION_MS
        properties |= {"session.timeout.ms": str(session_ms), "heartbeat.interval.ms": str(HEARTBEAT_MS)}
        properties["partition.assignment.strategy"] = "org.apache.kafka.clients.consumer.RoundRobinAssignor"
    if instance_id:
        properties["group.instance.id"] = instance_id
    options = [word for name, value in properties.items() for word in ("--command-property", f"{name}={value}")]
    what = ["--include", topic.removeprefix("^")] if topic.startswith("^") else ["--topic", topic]
    return tools.java(
        "-Xmx256m", f"-Dlog4j2.configurationFile={LOG}",
        tools.CONSOLE_CONSUMER,
        "--bootstrap-server", bootstrap, "--group", group, *what, "--from-beginning", *options,
    )  # fmt: skip


def command(kind: str, bootstrap: str, group: str, topic: str, instance_id: str = "") -> list[str]:
    """The command line of a member. Java's may be static, and logs what happens to its group. Raises ToolMissing."""
    if kind in LIBRARIES:
        return [sys.executable, "-m", "tests.clients.members.member", kind, bootstrap, group, topic]
    if kind == KAFKAJS:
        return ["node", str(tools.HERE / "js" / "member.js"), bootstrap, group, topic]
    if kind == KCAT:
        return _kcat(bootstrap, group, topic)
    return _java(bootstrap, group, topic, "consumer" if kind == JAVA_CONSUMER else "classic", instance_id)


class Member:
    """One process. `values` is everything it printed, in order."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str, instance_id: str = "") -> None:
        variables = {"NODE_PATH": str(tools.kafkajs() / "node_modules")} if kind == KAFKAJS else {}
        self.kind = kind
        self.values: list[bytes] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command(kind, bootstrap, group, topic, instance_id),
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=tools.environment(**variables),
        )
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.values.append(line.rstrip(b"\n"))

    def errors(self) -> str:
        """What it said on standard error."""
        # At an offset of its own: the process writes on where its file is.
        fd = self._errors.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    @property
    def lost_its_race(self) -> bool:
        """Whether it has ended because its partitions were taken from it while it collected records of them."""
        if self.kind != JAVA_CONSUMER or self.process.poll() is None:
            return False
        errors = self.errors()
        return all(part in errors for part in LOST_WHILE_COLLECTING)

    def pause(self) -> None:
        """Stop it for longer than its session lasts, say."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.process.pid, signal.SIGCONT)

    def leave(self) -> None:
        """Ask it to leave the group, and wait until it has ended and all it read is in `values`."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LEAVE_TIMEOUT_S)
        self._reader.join(LEAVE_TIMEOUT_S)

    def kill(self) -> None:
        """kill -9; all that it printed is in `values` afterwards."""
        self.process.kill()
        self.process.wait(LEAVE_TIMEOUT_S)
        self._reader.join(LEAVE_TIMEOUT_S)


class Members:
    """The members that a test starts; the processes are gone at its end."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.all: list[Member] = []

    def start(self, kind: str, group: str, topic: str, instance_id: str = "") -> Member:
        """A new member."""
        member = Member(kind, self.bootstrap, group, topic, instance_id)
        self.all.append(member)
        return member

    def values(self) -> set[bytes]:
        """What was read by anybody, dead or alive."""
        return {value for member in self.all for value in list(member.values)}

    def describe(self) -> str:
        """For the message of a failed test."""
        return "\n".join(
            f"{member.kind}: {len(member.values)} records, exit {member.process.poll()} {member.errors()[-8000:]}"
            for member in self.all
        )


@contextlib.contextmanager
def members(bootstrap: str) -> Iterator[Members]:
    """Members that are killed afterwards."""
    started = Members(bootstrap)
    try:
        yield started
    finally:
        for member in started.all:
            with contextlib.suppress(ProcessLookupError):
                member.kill()


def missing(acknowledged: Sequence[bytes], read: set[bytes]) -> list[bytes]:
    """What nobody has read."""
    return [value for value in acknowledged if value not in read]
