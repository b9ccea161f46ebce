"""Starting Spark on the Ray cluster."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from pyspark.sql import SparkSession

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.consumer.range_reader import prepare_leaders
from rayka.client.joined import RayCluster, leave
from rayka.spark.executor import ConnectWorker
from rayka.spark.java import find_java_on_ray, java_options, prepare_java, require_java_on_ray

NAMESPACE = "spark.rayka.namespace"
"""The setting in which a session remembers where its broker is."""
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.buffer.size": str(1 << 20),
    "spark.python.daemon.module": "rayka.spark.daemon",
    "spark.sql.session.timeZone": "UTC",
}
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", _EXECUTOR_OPTIONS, "spark.ray.raydp_app_master.extraJavaOptions")
_COLLECTOR = "-XX:+UseParallelGC"
"""Rows die young: this collector keeps to a small part of the heap, where G1 spreads over all of it first."""
_ANY_RAY = "ray://127.0.0.1:0"
"""A master as `spark-submit` needs to know it; which one is known later."""
_STOP_TIMEOUT_S = 30.0
_STOP_POLL_S = 0.05
_masters: list[str] = []
"""RayDP's actors that were started here: they end some time after Spark, and their names are taken until then."""


def session(
    app_name: str = "rayka",
    *,
    namespace: str = DEFAULT_NAMESPACE,
    executors: int = 1,
    executor_cores: int = 2,
    executor_memory: str = "1g",
    configs: Mapping[str, str] | None = None,
) -> SparkSession:
    """Spark with its executors as actors of the Ray cluster on which this program is; there is one for each program.

    `namespace` is the broker's. `configs` are Spark's settings. The flags that Java needs are set here.
    Raises INVALID_CONFIG where Java is missing.
    """
    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ray_cluster = RayCluster.here(namespace)
    java = find_java_on_ray()
    _in_background(lambda: _prepare_leaders(ray_cluster))
    import raydp  # takes most of the second in which Ray starts a process that looks for Java
    from raydp.spark.ray_cluster_master import RAYDP_SPARK_MASTER_SUFFIX

    _start_driver_early()
    require_java_on_ray(java)
    _masters.append(f"{app_name}{RAYDP_SPARK_MASTER_SUFFIX}")
    settings = {**_DEFAULTS, NAMESPACE: namespace, **(configs or {})}
    for name in _JAVA_OPTIONS:
        settings[name] = f"{java_options()} {settings.get(name, '')}".strip()
    if not re.search(r"-XX:\+Use\w+GC", settings[_EXECUTOR_OPTIONS]):
        settings[_EXECUTOR_OPTIONS] += f" {_COLLECTOR}"
    spark: SparkSession = raydp.init_spark(
        app_name, executors, executor_cores, executor_memory, fault_tolerant_mode=False, configs=settings
    )
    spark.sparkContext.setLogLevel("ERROR")
    _in_background(lambda: _start_workers(spark, ray_cluster, executors * executor_cores))
    return spark


def ray_cluster_of(spark: SparkSession) -> RayCluster:
    """The Ray cluster of a session, also of one that another program made."""
    return RayCluster.here(str(spark.conf.get(NAMESPACE, DEFAULT_NAMESPACE)))


def stop() -> None:
    """Stop Spark and its executors, and wait until another one can be started; Ray and the broker go on."""
    import raydp

    raydp.stop_spark()
    leave()
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while _masters and ray.is_initialized() and time.monotonic() < deadline_s:
        try:
            ray.get_actor(_masters[-1])
            time.sleep(_STOP_POLL_S)
        except ValueError:
            _masters.pop()
    _masters.clear()


def _start_driver_early() -> None:
    """Let RayDP start Spark's driver beside its own master, not after it: both are Java processes that load much."""
    from pyspark import SparkConf, SparkContext
    from raydp import context
    from raydp.spark import SparkCluster

    class EarlyDriver(SparkCluster):  # type: ignore[misc]
        def _set_up_master(self, *arguments: Any, **named: Any) -> None:
            settings = SparkConf(loadDefaults=False).setMaster(_ANY_RAY).setAll([*self._configs.items()])
            starting = threading.Thread(target=SparkContext._ensure_initialized, kwargs={"conf": settings})
            starting.start()
            try:
                super()._set_up_master(*arguments, **named)
            finally:
                starting.join()

    context.SparkCluster = EarlyDriver


def _prepare_leaders(ray_cluster: RayCluster) -> None:
    prepare_leaders(ray_cluster.connection().broker, ray_cluster.namespace)


def _start_workers(spark: SparkSession, ray_cluster: RayCluster, workers: int) -> None:
    """Start the executors' Python workers and connect them to Ray, so that the first query need not wait for it."""
    spark.range(0, workers, 1, workers).mapInArrow(ConnectWorker(ray_cluster), "id long").collect()


def _in_background(prepare: Callable[[], object]) -> None:
    """Run work that speeds up the first job. If it fails, that job reports the error."""

    def run() -> None:
        with contextlib.suppress(Exception):
            prepare()

    threading.Thread(target=run, name="spark-preparation", daemon=True).start()
