"""A thousand groups of five members on one coordinator: members that speak the protocol by hand, a few bytes each.

Half of the groups are classic, half speak the consumer protocol. Members share connections, as the protocol allows;
only the joins of one group go over different ones, since a join may wait for the others. `Members.beat` sends each
member's heartbeat every three seconds and counts what is not a plain "go on".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUPS = 1000
SIZE = 5
LANES = 16
"""So many groups join at a time, each over connections of its own."""
HEARTBEAT_S = 3.0
SESSION_MS = 10_000
JOIN_TIMEOUT_S = 60.0
FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP, CONSUMER_GROUP_HEARTBEAT = 10, 11, 12, 14, 68
UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 25, 27
COMING = (14, 15, 16)
"""The errors of a coordinator that is not there yet: it loads, has no leader, or is made just now."""
RETRY_S = 0.1
SETTLE_S = 0.02
NO_TAGS = b"\0"
NOTHING = b"\0\0" + bytes(4) + b"\xff" * 4
"""No topics, as a subscription and as an assignment of the classic consumer protocol."""
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


def short(text: str) -> bytes:
    """A string of the older versions."""
    data = text.encode()
    return _INT16.pack(len(data)) + data


def compact(text: str) -> bytes:
    """A string of the flexible versions; shorter than 127 bytes here."""
    data = text.encode()
    return bytes((len(data) + 1,)) + data


def data(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


class Connection:
    """Requests in flight on one connection, answered in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: list[asyncio.Future[bytes]] = []
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, bootstrap: str) -> Connection:
        host, _, port = bootstrap.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, api: int, version: int, body: bytes, *, flexible: bool = False) -> asyncio.Future[bytes]:
        """The answer without its header."""
        header = struct.pack(">hhi", api, version, 0) + short("many") + (NO_TAGS if flexible else b"")
        self._writer.write(data(header + body))
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        return answered

    async def _read(self) -> None:
        while True:
            (length,) = _INT32.unpack(await self._reader.readexactly(4))
            answer = await self._reader.readexactly(length)
            self._waiting.pop(0).set_result(answer[4:])

    def close(self) -> None:
        self._task.cancel()
        self._writer.close()


@dataclass
class Classic:
    """A member of a classic group, in versions without flexible fields: JoinGroup 3, SyncGroup 2, Heartbeat 2."""

    connection: Connection
    group_id: str
    member_id: str = ""
    session_ms: int = SESSION_MS
    epoch: int = -1
    is_settled: bool = False

    async def join(self) -> None:
        """Until it is in a generation that has its assignment."""
        while True:
            protocol = short("range") + data(NOTHING)
            body = short(self.group_id) + struct.pack(">ii", self.session_ms, 60_000) + short(self.member_id)
            answer = await self.connection.send(JOIN_GROUP, 3, body + short("consumer") + _INT32.pack(1) + protocol)
            error, self.epoch = struct.unpack_from(">hi", answer, 4)
            if error in COMING or error == UNKNOWN_MEMBER_ID:
                self.member_id = "" if error == UNKNOWN_MEMBER_ID else self.member_id
                await asyncio.sleep(RETRY_S)
                continue
            if error:
                raise RuntimeError(f"{self.group_id}: JoinGroup has error {error}")
            leader, self.member_id = _strings(answer, 10)[1:]
            assignment = short(self.member_id) + data(NOTHING) if leader == self.member_id else b""
            body = short(self.group_id) + _INT32.pack(self.epoch) + short(self.member_id)
            answer = await self.connection.send(SYNC_GROUP, 2, body + _INT32.pack(bool(assignment)) + assignment)
            if _error(answer, 4) != REBALANCE_IN_PROGRESS:
                return

    async def beat(self) -> int:
        body = short(self.group_id) + _INT32.pack(self.epoch) + short(self.member_id)
        return _error(await self.connection.send(HEARTBEAT, 2, body), 4)

    async def settle(self) -> bool:
        """Joins again if it has to; whether it had not."""
        if await self.beat():
            await self.join()
            return False
        return True


class Consumer:
    """A member that speaks the consumer protocol, ConsumerGroupHeartbeat 1."""

    def __init__(self, connection: Connection, group_id: str) -> None:
        self.connection, self.group_id = connection, group_id
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.is_settled = False

    async def join(self) -> None:
        topics = b"\2" + compact("none")
        while (error := await self._send(struct.pack(">i", 60_000) + topics + b"\0\0" + b"\1")) in COMING:
            await asyncio.sleep(RETRY_S)
        if error:
            raise RuntimeError(f"{self.group_id}: ConsumerGroupHeartbeat has error {error}")

    async def beat(self) -> int:
        return await self._send(struct.pack(">i", -1) + b"\0" + b"\0\0" + b"\0")

    async def _send(self, rest: bytes) -> int:
        """`rest`: rebalance timeout, topics, pattern, assignor, partitions."""
        who = compact(self.group_id) + compact(self.member_id) + _INT32.pack(self.epoch) + b"\0\0"
        answer = await self.connection.send(CONSUMER_GROUP_HEARTBEAT, 1, who + rest + NO_TAGS, flexible=True)
        error, place = _error(answer, 5), 7
        for _ in range(2):  # the message and the member id
            place += max(answer[place], 1)
        if not error:
            (self.epoch,) = _INT32.unpack_from(answer, place)
        return error

    async def settle(self) -> bool:
        """Takes the next step; whether there was none to take."""
        before = self.epoch
        return not await self.beat() and self.epoch == before


def _strings(answer: bytes, place: int) -> list[str]:
    """The protocol's name, the leader and the member, in the answer to a join."""
    found = []
    for _ in range(3):
        (size,) = _INT16.unpack_from(answer, place)
        found.append(answer[place + 2 : place + 2 + size].decode())
        place += 2 + size
    return found


def _error(answer: bytes, place: int) -> int:
    error: int = _INT16.unpack_from(answer, place)[0]
    return error


async def settle(group: Sequence[Classic | Consumer]) -> None:
    """Lets members join until all are in the same generation."""
    await asyncio.gather(*(member.join() for member in group))
    await asyncio.gather(*(_settle(member, group) for member in group))


async def _settle(member: Classic | Consumer, group: Sequence[Classic | Consumer]) -> None:
    """A member goes on until all are where it is: if it stopped before, the others might wait for it."""
    while True:
        member.is_settled = await member.settle()
        if all(other.is_settled and other.epoch == member.epoch for other in group):
            return
        await asyncio.sleep(SETTLE_S)


class Members:
    """All of them. `errors` counts heartbeats that were not plainly answered, by error."""

    def __init__(self, connections: list[list[Connection]], groups: int) -> None:
        self._lanes = connections
        self._groups = groups
        self._have_joined = asyncio.Event()
        self._waiting: list[asyncio.Task[None]] = []
        self.all: list[Classic | Consumer] = []
        self.errors: dict[int, int] = {}
        self.slowest_s = 0.0
        self.beats = 0

    async def join(self) -> float:
        """Until all groups are settled; the seconds that it took."""
        began = time.monotonic()
        names = iter([f"many-{number}" for number in range(self._groups)])
        await asyncio.wait_for(asyncio.gather(*(self._fill(lane, names) for lane in self._lanes)), JOIN_TIMEOUT_S)
        self._have_joined.set()
        await asyncio.gather(*self._waiting)
        return time.monotonic() - began

    async def _fill(self, lane: list[Connection], names: Any) -> None:
        for group_id in names:
            kind = Consumer if group_id[-1] in "02468" else Classic
            group = [kind(connection, group_id) for connection in lane]
            await settle(group)
            self.all += group
            self._waiting += [asyncio.create_task(self._stay(member)) for member in group]

    async def _stay(self, member: Classic | Consumer) -> None:
        """Heartbeats of a member whose group is there before the last one is."""
        while not self._have_joined.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._have_joined.wait(), HEARTBEAT_S)
                return
            self._count(await member.beat())

    def _count(self, error: int) -> None:
        self.beats += 1
        if error:
            self.errors[error] = self.errors.get(error, 0) + 1

    async def beat(self, seconds: float) -> None:
        """Heartbeats of all members, spread evenly over their interval."""
        ends = time.monotonic() + seconds
        await asyncio.gather(*(self._beat(member, index, ends) for index, member in enumerate(self.all)))

    async def _beat(self, member: Classic | Consumer, index: int, ends: float) -> None:
        due = time.monotonic() + HEARTBEAT_S * index / len(self.all)
        while due < ends:
            await asyncio.sleep(due - time.monotonic())
            error = await member.beat()
            self.slowest_s = max(self.slowest_s, time.monotonic() - due)
            self._count(error)
            due += HEARTBEAT_S


async def with_members(bootstrap: str, groups: int, then: Callable[[Members], Awaitable[None]]) -> None:
    """Joins so many groups and goes on with `then`."""
    lanes = [[await Connection.open(bootstrap) for _ in range(SIZE)] for _ in range(LANES)]
    try:
        await lanes[0][0].send(FIND_COORDINATOR, 0, short("many"))  # the topic of offsets is made
        await then(Members(lanes, groups))
    finally:
        for connection in (connection for lane in lanes for connection in lane):
            connection.close()


def run(bootstrap: str, seconds: float, groups: int = GROUPS) -> None:
    """Prints how long the groups took to settle, and after so many seconds of heartbeats what came of them."""

    async def then(members: Members) -> None:
        print(await members.join(), flush=True)
        await members.beat(seconds)
        print(json.dumps({"heartbeats": members.beats, "errors": members.errors, "s": members.slowest_s}), flush=True)

    asyncio.run(with_members(bootstrap, groups, then))


def measure(bootstrap: str, broker_cpu_s: Callable[[], float], seconds: float) -> dict[str, float]:
    """The broker's CPU while the members of a thousand settled groups send heartbeats, and when all have gone.

    Raises RuntimeError if the members failed.
    """
    before = resting(broker_cpu_s, seconds)
    arguments = json.dumps({"bootstrap": bootstrap, "seconds": seconds})
    command = [sys.executable, "-m", "benchmarks.many_groups", arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        settled_s = float(process.stdout.readline() or "nan")
        began_s, began = broker_cpu_s(), time.monotonic()
        said = process.stdout.readline()
        used = (broker_cpu_s() - began_s) / (time.monotonic() - began)
    if not said:
        raise RuntimeError("the members failed")
    outcome = json.loads(said)
    time.sleep(2 * SESSION_MS / 1000)  # all sessions are over, and what they left is written
    return {
        "s until settled": settled_s,
        "% of a core, heartbeats": used * 100,
        "slowest heartbeat, ms": outcome["s"] * 1000,
        "% of heartbeats with an error": 100 * sum(outcome["errors"].values()) / max(1, outcome["heartbeats"]),
        "% of a core, all empty": resting(broker_cpu_s, seconds) * 100,
        "% of a core, before": before * 100,
    }


def resting(broker_cpu_s: Callable[[], float], seconds: float) -> float:
    """Cores in use while nobody asks for anything."""
    began_s = broker_cpu_s()
    time.sleep(seconds)
    return (broker_cpu_s() - began_s) / seconds


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
