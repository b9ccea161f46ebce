"""Machine code that is stored, and loaded without numba."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayka.storage.columns import compiled as compiled_module
from rayka.storage.columns import native_code
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


FACTOR = 2


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


@compiled
def multiply(number: int) -> int:
    """The number, `FACTOR` times."""
    return number * FACTOR


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A file of code."""
    path = tmp_path / "code.o"
    native_code._Stored("stamp", "symbol", b"code").write(str(path))
    return path


def test_code_is_made_again_for_another_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant may come from a module whose source is not among those of the functions."""
    function: Any = multiply
    stamp = native_code._stamp(function)
    monkeypatch.setitem(function.function.__globals__, "FACTOR", 5)
    assert native_code._stamp(function) != stamp


def test_code_that_somebody_else_may_have_written_is_not_loaded(stored: Path) -> None:
    us = frozenset({os.geteuid()})
    assert native_code._Stored.read(str(stored), us)
    assert not native_code._Stored.read(str(stored), frozenset())
    stored.chmod(0o666)
    assert not native_code._Stored.read(str(stored), us)


def test_other_users_may_read_the_code_that_root_installs(stored: Path) -> None:
    assert stored.stat().st_mode & 0o777 == 0o644


def test_a_name_that_is_damaged_is_not_called(stored: Path) -> None:
    stored.write_bytes(stored.read_bytes().replace(b'"symbol": "', b'"symbol": "x'))
    assert not native_code._Stored.read(str(stored), frozenset({os.geteuid()}))


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        native_code._Stored("", "", b"code").write(str(tmp_path / "code.o"))
    assert not list(tmp_path.iterdir())


def test_without_a_home_nothing_is_loaded_from_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    paths = native_code._paths(weigh.function, ())  # type: ignore[attr-defined]
    assert all(Path(path).is_absolute() for path in paths)


def test_a_process_that_forks_while_a_thread_loads_code_can_load_some_too() -> None:
    is_loading = threading.Event()

    def load() -> None:
        with compiled_module._loading:
            is_loading.set()
            threading.Event().wait(0.2)

    thread = threading.Thread(target=load)
    thread.start()
    assert is_loading.wait(30)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's handler would go on with the tests in the fork
        signal.alarm(10)
        with compiled_module._loading:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    thread.join()
    assert status == 0, "the fork waits for ever"
