"""Finds, and where a package manager can bring them fetches, the clients that are not Python packages.

Everything fetched goes to a cache outside the repository (`RAYKA_TEST_CACHE`, by default `~/.cache/rayka-tests`).
Run `python -m tests.clients.tools` to fetch all of it beforehand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("RAYKA_TEST_CACHE", "~/.cache/rayka-tests")).expanduser()
KAFKA_TOOLS_VERSION = "4.3.1"
SET_UP_TIMEOUT_S = 600


class ToolMissing(Exception):
    """A client cannot be run on this machine; the message says what to install."""


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    """Runs a set-up command; its output appears only when it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=SET_UP_TIMEOUT_S
    )
    if done.returncode:
        raise ToolMissing(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")


def _need(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is not installed (Debian: apt-get install {package})")
    return path


@cache
def kcat() -> str:
    """The path of kcat; as root it is installed from Debian's package when it is missing."""
    path = shutil.which("kcat") or shutil.which("kafkacat")
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "kafkacat")
    return path or shutil.which("kafkacat") or _need("kcat", "kafkacat")


@cache
def kafkajs() -> Path:
    """The folder whose `node_modules` has KafkaJS and its codecs; the scripts of js/ find it by NODE_PATH."""
    node, npm = _need("node", "nodejs"), _need("npm", "npm")
    folder = CACHE / "kafkajs"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "js" / "package.json").read_bytes()
    installed = folder / "package.json"
    if not (folder / "node_modules" / "kafkajs").is_dir() or installed.read_bytes() != wanted:
        installed.write_bytes(wanted)
        _run(npm, "install", "--no-audit", "--no-fund", "--silent", cwd=folder)
    _run(node, "-e", "require('kafkajs')", cwd=folder)
    return folder


@cache
def kafka_tools() -> Path:
    """The folder of the jars of Kafka's Java client and command line tools."""
    _need("java", "openjdk-17-jre-headless")
    folder = CACHE / f"kafka-tools-{KAFKA_TOOLS_VERSION}"
    complete = folder / ".complete"
    if not complete.exists():
        _run(
            _need("mvn", "maven"), "-q", "-B", "-f", HERE / "java" / "pom.xml",
            f"-Dkafka.version={KAFKA_TOOLS_VERSION}", "dependency:copy-dependencies", f"-DoutputDirectory={folder}",
        )  # fmt: skip
        complete.touch()
    return folder


def java(*arguments: str) -> list[str]:
    """A Java command line with Kafka's jars on the class path; nothing is logged, as that goes to standard output."""
    return ["java", "-cp", f"{kafka_tools()}/*", "-Dlog4j2.level=OFF", "-XX:TieredStopAtLevel=1", *arguments]


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, **variables}


TOOLS: dict[str, Callable[[], object]] = {"kcat": kcat, "KafkaJS": kafkajs, "Kafka's Java tools": kafka_tools}


def main() -> int:
    failed = 0
    for name, bring in TOOLS.items():
        try:
            print(f"{name}: {bring()}")
        except ToolMissing as missing:
            print(f"{name}: {missing}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
