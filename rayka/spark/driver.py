"""Spark's driver: a Java process that also is RayDP's application master, which asks Ray for executors.

RayDP starts an actor in Python and two more Java processes for its master, and imports Ray Data. The master is an
endpoint of Spark's RPC, so it runs as well where the driver does; only the Java classes of RayDP are used.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray
from py4j.java_gateway import JavaPackage
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.jars import class_path, jars_of

_ANY_RAY = "ray://127.0.0.1:0"
"""A master as `spark-submit` needs to know it; which one is known later."""
_AGENT = "raydp-agent*.jar"
_LOGGING = {
    "spark.ray.log4j.factory.class": "log4j2",
    "spark.log4j.config.file.name": "log4j2-default.properties",
    "spark.ray.log4j.config.file.name": "log4j2.xml",
}
"""What RayDP gives its Java processes for log4j."""


class Driver:
    """The driver of one session. `settings` are Spark's; Java starts with them in the background."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = {**_LOGGING, **settings, "spark.javaagent": jars_of("raydp", _AGENT)[0]}
        own_path, added = self.settings.get("spark.driver.extraClassPath"), os.pathsep.join(class_path())
        self.settings["spark.driver.extraClassPath"] = f"{own_path}{os.pathsep}{added}" if own_path else added
        self._master: Any = None
        self._pid = os.getpid()
        starter = ThreadPoolExecutor(1, "rayka-spark-driver")
        self._java: Future[Any] = starter.submit(self._start_java)
        starter.shutdown(wait=False)

    def _start_java(self) -> Any:
        if java_has_ended():
            forget_java()
        settings = SparkConf(loadDefaults=False).setMaster(_ANY_RAY).setAll([*self.settings.items()])
        SparkContext._ensure_initialized(conf=settings)
        return SparkContext._jvm

    def start_master(self) -> str:
        """Connect Java to the Ray that this program is connected to, and start the application master; returns the URL
        of Spark's master. Raises INVALID_CONFIG if this program has started Java without RayDP before."""
        java, address = self._java.result(), _node().node_ip_address
        self.settings = {"spark.driver.host": address, "spark.driver.bindAddress": address, **self.settings}
        master: Any = java.org.apache.spark.deploy.raydp.RayAppMaster
        if isinstance(master, JavaPackage):
            message = "This program has started Spark's Java without RayDP before: start the session in another one"
            raise RaykaError(ErrorCode.INVALID_CONFIG, message)
        for name, value in self.settings.items():
            java.java.lang.System.setProperty(name, value)
        master.setProperties(json.dumps(_ray_properties()))
        java.io.ray.api.Ray.init()
        java.org.apache.spark.util.Utils.setLogLevel(java.org.apache.logging.log4j.Level.WARN)  # Ray lowers it
        preferred = self.settings.get("raydp.executor.extraClassPath", "").split(os.pathsep)
        self._master = master(os.pathsep.join([*filter(None, preferred), *class_path()]))
        return str(self._master.getMasterUrl())

    def runs(self) -> bool:
        """Whether this program can ask Java. It can't if Java was killed, nor as a fork of the one that has it."""
        return os.getpid() == self._pid and not java_has_ended()

    def stop(self) -> None:
        """Stop the executors and the application master, after Spark. The next session has settings of its own."""
        if self._master is not None and self.runs():
            java = self._java.result()
            self._master.stop()
            java.io.ray.api.Ray.shutdown()
            for name in self.settings:
                java.java.lang.System.clearProperty(name)
            self._master = None


def java_has_ended() -> bool:
    """Whether the Java that this program has started, or the one that forked it, is gone."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None and not os.path.exists(f"/proc/{process.pid}")


def forget_java() -> None:
    """Let PySpark start Java again: it would ask the one that has ended as long as the program runs."""
    gateway: Any = SparkContext._gateway
    gateway.close()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _ray_properties() -> dict[str, str]:
    """How Java finds the Ray of this program. The namespace of the executors' names is the session's own."""
    node = _node()
    return {
        "ray.run-mode": "CLUSTER",
        "ray.node-ip": node.node_ip_address,
        "ray.address": node.address,
        "ray.logging.dir": node.get_logs_dir_path(),
        "ray.session-dir": node.get_session_dir_path(),
        "ray.raylet.node-manager-port": str(node.node_manager_port),
        "ray.raylet.socket-name": node.raylet_socket_name,
        "ray.raylet.config.num_workers_per_process_java": "1",
        "ray.object-store.socket-name": node.plasma_store_socket_name,
        "ray.logging.level": "WARN",
        "ray.job.namespace": f"spark-{uuid.uuid4().hex}",
    }


def _node() -> Any:
    """Ray's node of this program, with its addresses and folders."""
    worker: Any = ray._private.worker
    return worker._global_node
