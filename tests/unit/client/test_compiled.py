"""Compiled code is loaded once there is enough to do, in every process that needs it."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rayka.client.compiled import LOAD_AFTER_RECORDS, Compiled
from rayka.testing import wait_until


def test_a_process_that_was_forked_while_compiled_code_was_loading_loads_it_itself() -> None:
    """The thread that loads exists in the parent only."""
    parent, may_load, loading = os.getpid(), threading.Event(), threading.Event()

    def wait_in_the_parent(function: Callable[..., Any]) -> None:
        if os.getpid() == parent:
            loading.set()
            assert may_load.wait(60)

    compiled = Compiled("math", "sqrt", wait_in_the_parent)
    compiled.count(LOAD_AFTER_RECORDS)
    assert loading.wait(30)
    child = os.fork()
    if not child:
        has_loaded = False
        try:
            compiled.count(1)
            wait_until(lambda: compiled.function is not None, 60, "compiled code is loaded")
            has_loaded = True
        finally:
            os._exit(0 if has_loaded else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert compiled.function is None
    may_load.set()
    wait_until(lambda: compiled.function is math.sqrt, 60, "compiled code is loaded")


def test_a_process_loads_compiled_code_once() -> None:
    loads: list[object] = []
    compiled = Compiled("math", "sqrt", loads.append)
    compiled.count(LOAD_AFTER_RECORDS - 1)
    assert compiled.function is None
    compiled.count(1)
    compiled.count(LOAD_AFTER_RECORDS)
    wait_until(lambda: compiled.function is math.sqrt, 60, "compiled code is loaded")
    assert loads == [math.sqrt]


def test_where_no_thread_can_be_started_compiled_code_is_loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[threading.Thread] = []

    def no_thread(thread: threading.Thread) -> None:
        tried.append(thread)
        raise RuntimeError("can't start new thread")

    compiled = Compiled("math", "sqrt", lambda _: None)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        compiled.count(LOAD_AFTER_RECORDS)
        compiled.count(LOAD_AFTER_RECORDS - 1)
    assert len(tried) == 1
    assert compiled.function is None
    compiled.count(1)
    wait_until(lambda: compiled.function is math.sqrt, 60, "compiled code is loaded")


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_keeps_the_thread_from_starting_is_raised_and_compiled_code_is_loaded_later(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise error

    compiled = Compiled("math", "sqrt", lambda _: None)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(error):
            compiled.count(LOAD_AFTER_RECORDS)
    compiled.count(LOAD_AFTER_RECORDS)
    wait_until(lambda: compiled.function is math.sqrt, 60, "compiled code is loaded")
