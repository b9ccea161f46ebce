"""Makes `format("rayka")` known to PySpark 4, which looks into packages whose names begin with `pyspark_`."""

from rayka.spark.source.source import RaykaSource as DefaultSource

__all__ = ["DefaultSource"]
