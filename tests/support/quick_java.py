"""Java for tests: they start it often and run little, and its optimizing compiler would take half of their time."""

from __future__ import annotations

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Environment for Spark's processes: Java compiles at once and simply."""
