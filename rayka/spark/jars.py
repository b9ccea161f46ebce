"""The jars that Spark's Java processes load."""

from __future__ import annotations

import glob
import importlib.util
import os

_PYSPARK_4 = 4


def is_pyspark_4() -> bool:
    """Whether this program has PySpark 4, which RayDP does not support yet."""
    import pyspark

    return int(pyspark.__version__.split(".")[0]) >= _PYSPARK_4


def class_path() -> list[str]:
    """What all Java processes of a session have: the jars of Spark, and with PySpark 3.5 those of RayDP and Ray."""
    spark_home = os.environ.get("SPARK_HOME") or _folder("pyspark")
    spark = os.path.join(spark_home, "jars", "*")
    return [spark] if is_pyspark_4() else [*jars_of("raydp", "*.jar"), spark, *jars_of("ray", "*.jar")]


def jars_of(package: str, pattern: str) -> list[str]:
    """The jars of a Python package. Raises ModuleNotFoundError."""
    return sorted(glob.glob(os.path.join(_folder(package), "jars", pattern)))


def _folder(package: str) -> str:
    """Where a package is. To import RayDP would import Ray Data and pandas. Raises ModuleNotFoundError."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            f"rayka.spark needs the package {package}: pip install '.[spark]' in the checkout of rayka"
        )
    return str(found.submodule_search_locations[0])
