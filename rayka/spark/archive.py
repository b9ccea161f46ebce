"""An archive of the Java classes that Spark's processes load.

    python -m rayka.spark.archive

makes it once on a machine: it starts a broker and a session, runs a few queries, and writes some 200 MB to
`~/.cache/rayka/spark`. From then on the Java processes of `rayka.spark.session`, or with PySpark 4 those of
`local_settings`, map the classes, where they would read, parse and verify some ten thousand of them. After an update of
Java, Spark or Ray it has to be made again; until then sessions start as without it. Source: Java's class data sharing,
JEP 310.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.jars import class_path, is_pyspark_4
from rayka.spark.java import java_program, prepare_java

_END_S = 600.0
"""Only bounds what hangs."""
_MESSAGE_LENGTH = 500
_OTHERS_MAY_WRITE = 0o022
_WORDS = "cast(id % 7 as string) as value"
_QUIET = "-Xlog:cds=off"
"""Java says nothing where the archive does not fit: it continues without."""


def archive_options() -> str:
    """The flags for Java to use the archive, if there is one for this machine's Java, Spark and Ray; else none.

    It has machine addresses that Java follows, so it must be of this user or of root.
    """
    archive = archive_path()
    try:
        status = archive.stat()
    except OSError:
        return ""
    is_ours = status.st_uid in (0, os.geteuid()) and not status.st_mode & _OTHERS_MAY_WRITE
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if is_ours else ""


def archive_path() -> Path:
    """Where the archive is or would be: another file for another Java, Spark or Ray."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    java = os.path.realpath(java_program() or "java")
    files = [java, *(entry.removesuffix("*") for entry in class_path())]
    state = [(each, os.stat(each).st_mtime_ns) for each in files if os.path.exists(each)]
    digest = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    return Path(cache, "rayka", "spark", f"{digest}.jsa")


def make_archive() -> Path:
    """Make the archive of this machine again, and return it. Raises OSError, or KAFKA_STORAGE_ERROR if Java fails."""
    import rayka

    java = prepare_java()
    archive = archive_path()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="made-", dir=archive.parent) as directory:
        with rayka.start(os.path.join(directory, "data"), "127.0.0.1:0") as cluster:
            cluster.admin().create_topic("words", 2)
            if is_pyspark_4():
                _load_classes_of_pyspark_4(cluster.bootstrap_servers, "words", directory)
            else:
                _load_classes("words", directory)
        classes = Path(directory, "classes")
        classes.write_text("\n".join(united(each.read_text() for each in sorted(Path(directory).glob("*.classlist")))))
        made = os.path.join(directory, archive.name)
        flags = ["-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}", "-Xlog:all=off"]
        _run(java, *flags, "-cp", os.pathsep.join(class_path()))
        with open(made, "rb") as file:
            os.fsync(file)  # Java would crash with one that a power cut had filled with zeros
        os.replace(made, archive)
    return archive


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-_MESSAGE_LENGTH:]
        raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Java ended with {done.returncode}: {said}")


def _load_classes(topic: str, directory: str) -> None:
    """Let a session load classes, and Java note their names in this directory."""
    import rayka.spark

    configs = {f"spark.{role}.extraJavaOptions": _noted(directory, role) for role in ("driver", "executor")}
    spark = rayka.spark.session(executor_memory="700m", configs=configs)
    rayka.spark.write_topic(spark.range(1000).selectExpr(_WORDS), topic)
    _count_words(rayka.spark.read_topic(spark, topic))
    rayka.spark.stop()
    _end_java()


def _load_classes_of_pyspark_4(bootstrap_servers: str, topic: str, directory: str) -> None:
    """The same in local mode."""
    from rayka.spark.local import local_settings

    options = {"spark.driver.extraJavaOptions": _noted(directory, "driver"), "spark.ui.enabled": "false"}
    builder: Any = SparkSession.builder
    spark: SparkSession = builder.master("local[2]").config(map={**local_settings(), **options}).getOrCreate()
    broker = {"kafka.bootstrap.servers": bootstrap_servers}
    words = spark.range(1000).selectExpr(_WORDS)
    words.write.format("rayka").options(**broker, topic=topic).mode("append").save()
    _count_words(spark.read.format("rayka").options(**broker, subscribe=topic).load())
    spark.stop()
    _end_java()


def _noted(directory: str, role: str) -> str:
    return f"-XX:DumpLoadedClassList={os.path.join(directory, role)}.classlist"


def _count_words(records: DataFrame) -> None:
    words = records.selectExpr("cast(value as string) as word", "timestamp")
    words.groupBy("word").count().orderBy("word").collect()


def _end_java() -> None:
    """End the driver's Java, which then writes the rest of its list."""
    driver: Any = SparkContext._gateway
    driver.shutdown()  # of Python's side: nothing is sent to Java that has ended
    driver.proc.stdin.close()
    driver.proc.wait(_END_S)


def united(lists: Iterable[str]) -> list[str]:
    """The lines of all lists, each once, without the numbers that classes have in their list alone."""
    lines = (line for text in lists for line in text.splitlines() if " source: " not in line)
    return list(dict.fromkeys(line.split(" id: ")[0] for line in lines))


def main() -> None:
    """Make the archive, and say where it is, or why there is none."""
    try:
        archive = make_archive()
    except (OSError, RaykaError) as error:
        raise SystemExit(f"No archive was made: {error}") from None
    print(f"{archive}: {archive.stat().st_size >> 20} MB")


if __name__ == "__main__":
    main()
