"""What holds for every test: Hypothesis's profile, the time a test may take, and in which order tests run."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import schedule
from tests.support.only_python import must_be_pure, only_python
from tests.support.scale import IS_LONG, examples
from tests.support.shown_logs import shown_logs

LONG_TIMEOUT_S = 7200
# A shell that starts a job in the background lets it ignore SIGINT, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machines that run these tests are small and shared, so durations say nothing, and how many of the first examples
# are of use depends on the seed. A failure prints the blob that reproduces it.
settings.register_profile(
    "rayka",
    deadline=None,
    print_blob=True,
    max_examples=examples(100),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
)
settings.load_profile("rayka")


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The pointer to the broker that was started last is this process's, not the user's or another worker's.

    Ray kills no process when the machine's memory gets scarce: all Rays of all workers would do so at once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage while modules are imported: that takes a tenth of the processor time of collecting tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let unit and property tests, and their fixtures, start no program but Python."""
    with only_python() if must_be_pure(item) else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the brokers' logs below a failure."""
    report = yield
    if report.failed:
        report.sections += shown_logs()
    return report


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> schedule.GroupScheduling | None:
    """Keep tests that share a broker together with `--dist loadgroup`."""
    return schedule.GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Schedule the tests; in a long run one may take two hours."""
    schedule.arrange(items)
    if IS_LONG:
        for item in items:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S), append=False)
