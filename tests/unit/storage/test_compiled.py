"""Machine code that is stored, and loaded without numba."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rayka.storage.columns.compiled import CompiledFunction, compiled
from rayka.storage.columns.decode import Longs

ENCODE_AND_READ = """
import sys
from rayka.storage.columns.read import read_columns
from rayka.storage.columns.rows import encode_lists
from rayka.storage.format.records import Record, build_batch
print(encode_lists([b"value"], [b"key"], [()], [0])[61:].hex())
print(read_columns(build_batch([Record(0, 1, b"key", b"value")]), topic="t", partition=0).batch.num_rows)
print("numba" in sys.modules, "pandas" in sys.modules)
"""


@compiled
def weigh(numbers: Longs, weight: int) -> tuple[int, int]:
    """The weighed sum and the count of numbers."""
    total = 0
    for index in range(len(numbers)):
        total += numbers[index] * weight
    return total, len(numbers)


def test_code_that_was_stored_is_loaded_without_numba_and_nothing_imports_pandas() -> None:
    command = [sys.executable, "-c", ENCODE_AND_READ]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
        for _ in range(2)
    )
    assert second == [*first[:2], "False False"]


def test_any_array_is_an_argument_and_a_damaged_file_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    numbers = np.arange(10)
    assert weigh(numbers, -2) == (-90, 10)
    assert weigh(numbers[::2], 1) == (20, 5)
    assert weigh(numbers.astype(np.int16), 1) == (45, 10)
    (stored,) = tmp_path.glob("test_compiled.weigh.*.o")
    whole = stored.read_bytes()
    for damaged in (whole[:-1], b"", whole.replace(b'"stamp": "', b'"stamp": "other ')):
        stored.write_bytes(damaged)
        again = CompiledFunction(weigh.function)  # type: ignore[attr-defined]
        assert again(numbers, 3) == (135, 10)
        assert stored.read_bytes() != damaged
