"""Groups, measured: how soon members settle, what a commit takes, and how long a crash stops the others.

The client's side runs in a process of its own, `python -m benchmarks.groups NAME JSON`, which prints JSON. Members are
consumers of confluent-kafka, all in one process, on topics without records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.load import TIMEOUT_S, Figures, create_topic

MEMBERS = 50
CRASH_MEMBERS = 10
CRASH_PARTITIONS = 20
SESSION_MS = 6000
CALM_S = 7.0
"""The members settle into their heartbeat intervals before one is killed."""
CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 1000, "partition.assignment.strategy": "range"}
PROTOCOLS: dict[str, dict[str, Any]] = {"classic": CLASSIC, "consumer": {"group.protocol": "consumer"}}
WARM_UP_S = 2.0
_PAUSE_S = 0.001


def start(name: str, **arguments: Any) -> subprocess.Popen[str]:
    """One client process; it prints its figures when it ends."""
    command = [sys.executable, "-m", "benchmarks.groups", name, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])


def run(name: str, **arguments: Any) -> Figures:
    """Runs one client process to its end. Raises RuntimeError when it fails; it has said why."""
    with start(name, **arguments) as process:
        output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"groups: {name} failed")
    figures: Figures = json.loads(output)
    return figures


def consumer(bootstrap: str, group_id: str, **settings: Any) -> Consumer:
    common = {"bootstrap.servers": bootstrap, "group.id": group_id, "log_level": 0, "enable.auto.commit": False}
    return Consumer({**common, **settings})


def members(bootstrap: str, group_id: str, topic: str, protocol: str, count: int) -> list[Consumer]:
    """Consumers that have begun to join."""
    joining = [consumer(bootstrap, group_id, **PROTOCOLS[protocol]) for _ in range(count)]
    for member in joining:
        member.subscribe([topic])
    return joining


def poll_until(polled: Sequence[Consumer], condition: Callable[[], bool]) -> float:
    """Lets all consumers go on until the condition holds; the seconds that it took. Raises TimeoutError."""
    began = time.monotonic()
    while True:
        for each in polled:
            each.poll(0)
        if condition():
            return time.monotonic() - began
        if time.monotonic() > began + TIMEOUT_S:
            raise TimeoutError(f"{[len(each.assignment()) for each in polled]}")
        time.sleep(_PAUSE_S)


def have(polled: Sequence[Consumer], share: int) -> bool:
    """Whether each has so many partitions, and no two the same."""
    owned = [{(at.topic, at.partition) for at in each.assignment()} for each in polled]
    return all(len(own) == share for own in owned) and len(set().union(*owned)) == share * len(owned)


def settle(bootstrap: str, topic: str, protocol: str) -> Figures:
    """From the first subscription until each of 50 new members has its one of 50 partitions."""
    create_topic(bootstrap, topic, MEMBERS)
    await_coordinator(bootstrap, topic)
    began = time.monotonic()
    joined = members(bootstrap, topic, topic, protocol, MEMBERS)
    poll_until(joined, lambda: have(joined, 1))
    return {"s": time.monotonic() - began}


def await_coordinator(bootstrap: str, group_id: str) -> None:
    """Return when the coordinator of a group has loaded its partition; a new cluster creates the topic first."""
    asking = consumer(bootstrap, group_id)
    asking.committed([TopicPartition(group_id, 0)], TIMEOUT_S)
    asking.close()


def commits(bootstrap: str, topic: str, seconds: float) -> Figures:
    """One client commits one offset and waits for the answer, again and again."""
    create_topic(bootstrap, topic, 1)
    await_coordinator(bootstrap, topic)
    client = consumer(bootstrap, topic)
    commit_for(client, topic, WARM_UP_S)
    rate = commit_for(client, topic, seconds)
    client.close()
    return {"commits/s": rate}


def commit_for(client: Consumer, topic: str, seconds: float) -> float:
    count, began = 0, time.monotonic()
    while (taken := time.monotonic() - began) < seconds:
        count += 1
        client.commit(offsets=[TopicPartition(topic, 0, count)], asynchronous=False)
    return count / taken


def crash(bootstrap: str, topic: str, protocol: str) -> Figures:
    """Ten members share 20 partitions, and one is killed. Its session is 6 s in a classic group, else 10 s.

    "s until all is read" is from the kill until the others have all partitions; "s of standstill" is how long the one
    of them that had to stop for longest had nothing meanwhile.
    """
    create_topic(bootstrap, topic, CRASH_PARTITIONS)
    share = CRASH_PARTITIONS // CRASH_MEMBERS
    victim = start("one_member", bootstrap=bootstrap, topic=topic, protocol=protocol)
    others = members(bootstrap, topic, topic, protocol, CRASH_MEMBERS - 1)
    poll_until(others, lambda: have(others, share))
    calm = time.monotonic() + CALM_S
    poll_until(others, lambda: time.monotonic() > calm)
    victim.kill()
    stopped = [0.0] * len(others)
    last = time.monotonic()

    def all_is_read() -> bool:
        nonlocal last
        now = time.monotonic()
        owned = [len(each.assignment()) for each in others]
        for index, count in enumerate(owned):
            stopped[index] += 0.0 if count else now - last
        last = now
        return sum(owned) == CRASH_PARTITIONS

    taken = poll_until(others, all_is_read)
    victim.wait()
    for each in others:
        each.close()
    return {"s until all is read": taken, "s of standstill": max(stopped)}


def one_member(bootstrap: str, topic: str, protocol: str) -> Figures:
    """The one that will be killed."""
    (member,) = members(bootstrap, topic, topic, protocol, 1)
    poll_until([member], lambda: False)
    return {}


CLIENTS: dict[str, Callable[..., Figures]] = {run.__name__: run for run in (settle, commits, crash, one_member)}

if __name__ == "__main__":
    print(json.dumps(CLIENTS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
    os._exit(0)  # fifty consumers that leave one after the other would take their time
