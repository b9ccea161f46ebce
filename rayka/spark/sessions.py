"""Starting Spark on the Ray cluster."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import ray
from pyspark import SparkContext
from pyspark.sql import SparkSession

from rayka.actors.controller.watch import find_controller
from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.connection import require_ray, take_token
from rayka.client.consumer.range_reader import prepare_leaders
from rayka.client.joined import RayCluster, leave
from rayka.config.remote import SYSTEM_ENABLE
from rayka.errors import ErrorCode, RaykaError
from rayka.spark.archive import archive_options
from rayka.spark.driver import Driver, java_has_ended
from rayka.spark.java import (
    PARALLEL_COLLECTOR,
    PATIENT_COMPILER,
    java_options,
    prepare_java,
    require_java_on_ray,
)
from rayka.spark.worker.splits import StartWorker

logger = logging.getLogger(__name__)

NAMESPACE = "spark.rayka.namespace"
"""The setting in which a session remembers where its broker is."""
TABLES = "spark.rayka.tables"
"""Whether workers map tables of the partition actors ("true"), or fetch record batches and decode them."""
_SMALL_STORE_BYTES = 1 << 30
"""In a smaller object store the partition actors keep too few tables to be worth the detour."""
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.buffer.size": str(1 << 20),
    "spark.sql.session.timeZone": "UTC",
}
_DAEMON = "spark.python.daemon.module"
_WITH_TABLES = {TABLES: "true", _DAEMON: "rayka.spark.worker.ray_daemon"}
_WITHOUT_TABLES = {TABLES: "false", _DAEMON: "rayka.spark.worker.daemon"}
_EXECUTOR_CPUS = "spark.ray.raydp_spark_executor.actor.resource.cpu"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
_running: list[tuple[SparkSession, Driver]] = []
"""The session of this program."""


def session(
    app_name: str = "rayka",
    *,
    namespace: str = DEFAULT_NAMESPACE,
    executors: int = 1,
    executor_cores: int = 2,
    executor_memory: str = "1g",
    configs: Mapping[str, str | int | float] | None = None,
) -> SparkSession:
    """Start Spark with its executors as actors of this program's Ray cluster. A program has one session.

    `namespace` is the broker's. `configs` are Spark's settings. The flags that Java needs are set here. Raises
    INVALID_CONFIG if Java is missing, INVALID_REQUEST if a session is running, and BROKER_NOT_AVAILABLE without Ray or
    a broker.
    """
    _require_stopped()
    _require_broker(namespace)
    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not ray.is_initialized():
        take_token()  # Java starts with the environment of this moment
    sizes = {"instances": executors, "cores": executor_cores, "memory": executor_memory}
    given = {f"spark.executor.{name}": str(size) for name, size in sizes.items()}
    driver = Driver(java_settings(texts({**_DEFAULTS, NAMESPACE: namespace, **(configs or {}), **given})))
    ray_cluster = RayCluster.here(namespace)
    require_java_on_ray(find_controller(namespace))
    has_tables = driver.settings.get(TABLES, _has_tables(ray_cluster)) == "true"
    try:
        spark = _started(app_name, driver, _WITH_TABLES if has_tables else _WITHOUT_TABLES)
    except BaseException:
        _abandon(driver)
        raise
    _running.append((spark, driver))
    _warn_unless_executors_fit(spark)
    if has_tables:
        _in_background(lambda: prepare_leaders(ray_cluster.connection().broker, namespace))
    joined = ray_cluster if has_tables else None
    _in_background(lambda: _start_workers(spark, joined, executors * executor_cores))
    return spark


def _started(app_name: str, driver: Driver, defaults: Mapping[str, str]) -> SparkSession:
    master = driver.start_master()
    builder: Any = SparkSession.builder
    spark: SparkSession = (
        builder.appName(app_name).master(master).config(map={**defaults, **driver.settings}).getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _abandon(driver: Driver) -> None:
    """Stop what has started of a session that failed, which Spark would else give to the next one."""
    context: Any = SparkContext._active_spark_context
    if context is not None and driver.runs():
        context.stop()
    driver.stop()


def ray_cluster_of(spark: SparkSession) -> RayCluster:
    """The Ray cluster of a session, also of one that another program made."""
    return RayCluster.here(str(spark.conf.get(NAMESPACE, DEFAULT_NAMESPACE)))


@atexit.register
def stop() -> None:
    """Stop Spark and its executors, so that another session can start; Ray and the broker keep running."""
    while _running:
        spark, driver = _running.pop()
        try:
            if driver.runs():
                spark.stop()
                driver.stop()
        finally:
            leave()


def _require_stopped() -> None:
    """Spark would give the session that runs, whoever has started it and with whatever master."""
    context: Any = SparkContext._active_spark_context
    if context is not None and context._jsc is not None and not java_has_ended():
        message = "Spark runs already: call rayka.spark.stop() first, or stop() of a session that is not of rayka"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message)
    stop()


def _require_broker(namespace: str) -> None:
    """Raise early if there is no Ray or no broker. A program that has not joined Ray yet does so while Java starts."""
    require_ray()
    if ray.is_initialized():
        find_controller(namespace)


def texts(settings: Mapping[str, str | int | float]) -> dict[str, str]:
    """Settings as Spark writes them: flags in lower case."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}


def java_settings(settings: dict[str, str]) -> dict[str, str]:
    """The settings with flags for Java before those that they have: the last of two that differ counts."""
    for name in (_DRIVER_OPTIONS, _EXECUTOR_OPTIONS):
        given = settings.get(name, "")
        archive = "" if re.search(r"SharedArchiveFile|DumpLoadedClassList", given) else archive_options()
        settings[name] = " ".join(filter(None, (java_options(), archive, PATIENT_COMPILER, given)))
    if not re.search(r"-XX:\+Use\w+GC", settings[_EXECUTOR_OPTIONS]):
        settings[_EXECUTOR_OPTIONS] += f" {PARALLEL_COLLECTOR}"
    return settings


def _resources() -> list[Mapping[str, float]]:
    """The resources of each node of Ray."""
    return [node["Resources"] for node in cast(Any, ray.nodes)() if node["Alive"]]


def _warn_unless_executors_fit(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    settings = context.getConf()
    cpus = float(settings.get(_EXECUTOR_CPUS, settings.get("spark.executor.cores")))
    missing = missing_resources(_resources(), cpus, context._jsc.sc().executorMemory() << 20)
    if missing is not None:
        logger.warning("%s", missing)


def missing_resources(nodes: Sequence[Mapping[str, float]], cpus: float, memory_bytes: int) -> str | None:
    """A warning if no node has what an executor needs: Ray then waits for such a node, and queries wait too."""
    if any(node.get("CPU", 0.0) >= cpus and node.get("memory", 0.0) >= memory_bytes for node in nodes):
        return None
    found = " or ".join(f"{node.get('CPU', 0.0):g} CPUs and {node.get('memory', 0.0) / 2**20:.0f} MB" for node in nodes)
    needed = f"{cpus:g} CPUs and {memory_bytes >> 20} MB"
    return f"Queries wait until Ray has a node for an executor, which needs {needed}: now a node has {found}"


def _has_tables(ray_cluster: RayCluster) -> str:
    """Whether tables serve better: in a large object store, on several nodes, or where old records are elsewhere."""
    nodes = _resources()
    has_room = all(node.get("object_store_memory", 0) >= _SMALL_STORE_BYTES for node in nodes)
    is_tiered = ray_cluster.connection().broker.config[SYSTEM_ENABLE]
    return "true" if has_room or is_tiered or len(nodes) > 1 else "false"


def _start_workers(spark: SparkSession, ray_cluster: RayCluster | None, workers: int) -> None:
    """Start the executors' Python workers, connected to Ray if need be, so that the first query need not wait."""
    spark.range(0, workers, 1, workers).mapInArrow(StartWorker(ray_cluster), "id long").collect()


def _in_background(prepare: Callable[[], object]) -> None:
    """Run work that speeds up the first job. If it fails, that job reports the error."""

    def run() -> None:
        with contextlib.suppress(Exception):
            prepare()

    threading.Thread(target=run, name="rayka-spark-preparation", daemon=True).start()
