"""Every code block of the README and of docs/ runs as it stands there, in order, one broker for each document."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.testing import free_port
from tests.support.readme import ROOT, Block, blocks, documents
from tests.support.shown_logs import HOMES

RUN = ("sh", "python")
NOT_CODE = ("mermaid", "text")
TIMEOUT_S = 300
JOIN_JOBS = """
import time
from confluent_kafka import Producer, ShareConsumer
producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
consumer = ShareConsumer({"bootstrap.servers": "127.0.0.1:9092", "group.id": "jobs", "log_level": 0})
consumer.subscribe(["tasks"])
deadline_s = time.monotonic() + 120
while not consumer.poll(1) and time.monotonic() < deadline_s:
    producer.produce("tasks", b"a task")
    producer.flush(60)
consumer.close()
"""
"""A share group that has been at a topic."""
BEFORE = {
    "docs/operations.md": f"""
        rayka topics create orders --partitions 2
        seq 10 | rayka produce orders
        rayka consume orders --group billing > /dev/null
        echo /consumers/billing/offsets/orders/0:1 > offsets.txt
        rayka topics create tasks
        python -c {shlex.quote(JOIN_JOBS)}
    """
}
"""What a document takes for granted."""


class Machine:
    """A home of its own with `rayka` on the path. `rayka up` listens on a free port, which stands for 9092."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        commands = home / "bin"
        commands.mkdir()
        up = f'[ "$1" = up ] && set -- "$@" --listen 127.0.0.1:{self.port}\n'
        self._script(commands / "rayka", f'{up}exec {shlex.quote(sys.executable)} -m rayka "$@"\n')
        self._script(commands / "pip", f'exec {shlex.quote(sys.executable)} {ROOT}/tests/examples/extras.py "$@"\n')
        self.environment = {
            **os.environ,
            "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_DATA_HOME": str(home / "share"),
        }

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)

    def run(self, language: str, text: str) -> subprocess.CompletedProcess[str]:
        """Run a block; what runs until Ctrl-C is interrupted after some seconds."""
        text = text.replace(":9092", f":{self.port}")
        if language == "sh":
            lines = [_interrupted(line) if "Ctrl-C ends it" in line else line for line in text.splitlines()]
            command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
        else:
            command = [sys.executable, "-c", text]
        return subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )


def _interrupted(line: str) -> str:
    command = line.partition("#")[0].strip()
    return f"timeout --signal INT 8 {command} || [[ $? =~ ^(124|130)$ ]]"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    HOMES.add(tmp_path)
    yield machine
    HOMES.discard(tmp_path)
    machine.run("sh", "rayka down")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_its_blocks_run(document: Path, machine: Machine) -> None:
    runnable = [block for block in blocks(document) if block.language in RUN and block.test is None]
    if not runnable:
        return
    name = str(document.relative_to(ROOT))
    is_up = not any("rayka up" in block.text for block in runnable)
    if is_up:
        succeed(machine, Block(name, 0, "sh", "rayka up --background", None))
    succeed(machine, Block(name, 0, "sh", BEFORE.get(name, ""), None))
    for block in runnable:
        if not is_up and "rayka up" not in block.text:
            succeed(machine, Block(name, 0, "sh", "rayka up --background", None))
        succeed(machine, block)
        is_up = block.text.rfind("rayka down") <= block.text.rfind("rayka up")


def succeed(machine: Machine, block: Block) -> None:
    done = machine.run(block.language, block.text)
    assert done.returncode == 0, f"{block.name}\n{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_each_block_says_what_it_is(document: Path) -> None:
    for block in blocks(document):
        assert block.language in RUN + NOT_CODE, f"{block.name} is neither of {RUN + NOT_CODE}"
        if block.test is not None:
            assert (ROOT / block.test).is_file(), f"{block.name}: there is no {block.test}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_its_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: there is no {target}"


def test_the_tables_of_files_are_those_of_the_code() -> None:
    made = subprocess.run([sys.executable, ROOT / "scripts" / "file_tables.py", "--check"], check=False)
    assert made.returncode == 0, "run python scripts/file_tables.py"


def test_the_site_with_the_api_reference_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "api" / "index.html").read_text()
    for name in ("rayka.connect", "rayka.client.admin.admin.Admin", "rayka.spark.read_topic", "rayka.data.iter_topic"):
        assert f'id="{name}"' in reference
