"""The supervisor with a stand-in for the broker process: restarts, giving up, and leaving nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rayka.testing import wait_until

BOUND_S = 60.0
STAND_IN = Path(__file__).with_name("stand_in.py")
RUNNER = """
import sys
from rayka.cli.daemon.restart_policy import Policy
from rayka.cli.daemon.supervisor import Supervisor
stop_timeout_s = 0.5 if "stubborn" in sys.argv else 15.0
first_delay_s = 600.0 if "dies-for-long" in sys.argv else 0.01
policy = Policy(max_failures=3, first_delay_s=first_delay_s, stop_timeout_s=stop_timeout_s)
supervisor = Supervisor([sys.executable, *sys.argv[1:]], {"listen": "127.0.0.1:0"}, policy)
exit_code = supervisor.run()
print("stopped cleanly:", supervisor.stopped_cleanly, file=sys.stderr)
sys.exit(exit_code)
"""


class Run:
    """A supervisor in a process of its own, for at most `BOUND_S`: then what is read from it ends."""

    def __init__(self, behaviour: str, directory: Path) -> None:
        self.lives: list[tuple[int, int]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(STAND_IN), str(directory / "lives"), *behaviour.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._bound = threading.Timer(BOUND_S, self.process.kill)
        self._bound.start()

    def next_life(self) -> tuple[int, int]:
        """Waits for the child's next life: its process id and its orphan's, both as pidfds too."""
        line = self.until("lives ")
        child, orphan = (int(word) for word in line.split()[1:])
        self.lives.append((os.pidfd_open(child), os.pidfd_open(orphan)))
        return child, orphan

    def until(self, start: str) -> str:
        """The next line of stderr that holds `start`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if start in line:
                return line
        raise AssertionError(f"stderr ended without {start!r}")

    def wait_ready(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def wait_ready_unread(self) -> None:
        """As `wait_ready`, once standard output is closed: the supervisor then writes to nowhere."""
        standard_output = f"/proc/{self.process.pid}/fd/1"
        wait_until(lambda: os.readlink(standard_output) == os.devnull, BOUND_S, "it is ready and finds no reader")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err

    def assert_nothing_left(self) -> None:
        for pidfd in (fd for life in self.lives for fd in life):
            readable, _, _ = select.select([pidfd], [], [], 5)
            assert readable, "a process outlived the supervisor"

    def close(self) -> None:
        self._bound.cancel()
        self.process.kill()
        self.process.communicate()
        for pidfd in (fd for life in self.lives for fd in life):
            os.close(pidfd)


@pytest.fixture
def supervised(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    run = Run(request.param, tmp_path)
    yield run
    run.close()


@pytest.mark.parametrize("supervised", ["serves"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_when_told_and_leaves_nothing(supervised: Run, number: int) -> None:
    supervised.next_life()
    assert supervised.wait_ready() == "rayka is ready on 127.0.0.1:4242\n"
    supervised.process.send_signal(number)
    code, out, err = supervised.end()
    assert (code, out) == (0, "")
    assert err.endswith("stopped cleanly: True\n")
    supervised.assert_nothing_left()


@pytest.mark.parametrize("supervised", ["serves"], indirect=True)
def test_goes_on_serving_when_nobody_reads_that_it_is_ready(supervised: Run) -> None:
    """`rayka up --background` reads one line and ends, maybe before all that is written is."""
    assert supervised.process.stdout is not None
    supervised.process.stdout.close()
    supervised.process.stdout = None
    child, _ = supervised.next_life()
    supervised.wait_ready_unread()
    os.kill(child, signal.SIGKILL)
    supervised.next_life()
    supervised.until("serving on 127.0.0.1:4242 again")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.end()[0] == 0
    supervised.assert_nothing_left()


@pytest.mark.parametrize("supervised", ["serves"], indirect=True)
def test_brings_the_child_back_and_is_ready_only_once(supervised: Run) -> None:
    for life in range(3):
        child, _ = supervised.next_life()
        if life == 0:
            assert supervised.wait_ready() == "rayka is ready on 127.0.0.1:4242\n"
        else:
            supervised.until("serving on 127.0.0.1:4242 again")
        if life < 2:
            os.kill(child, signal.SIGKILL)
            assert "was killed by SIGKILL" in supervised.until("restarting it")
    supervised.process.send_signal(signal.SIGTERM)
    code, out, _ = supervised.end()
    assert (code, out) == (0, "")
    supervised.assert_nothing_left()


@pytest.mark.parametrize("supervised", ["serves"], indirect=True)
def test_nothing_survives_a_killed_supervisor(supervised: Run) -> None:
    supervised.next_life()
    supervised.wait_ready()
    supervised.process.kill()
    supervised.assert_nothing_left()


@pytest.mark.parametrize("supervised", ["serves"], indirect=True)
def test_a_killed_reaper_is_replaced_with_all_below_it(supervised: Run) -> None:
    child, _ = supervised.next_life()
    supervised.wait_ready()
    psutil.Process(child).parent().kill()
    supervised.next_life()
    supervised.until("serving on 127.0.0.1:4242 again")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.end()[0] == 0
    supervised.assert_nothing_left()


@pytest.mark.parametrize("supervised", ["stubborn"], indirect=True)
def test_a_child_that_does_not_stop_is_killed(supervised: Run) -> None:
    supervised.next_life()
    supervised.wait_ready()
    supervised.process.send_signal(signal.SIGTERM)
    code, _, err = supervised.end()
    assert code == 1
    assert "did not stop cleanly" in err
    assert err.endswith("stopped cleanly: False\n")
    supervised.assert_nothing_left()


@pytest.mark.parametrize("supervised", ["never-ready stubborn"], indirect=True)
def test_a_child_that_is_killed_while_it_starts_has_not_stopped_cleanly(supervised: Run) -> None:
    supervised.next_life()
    supervised.process.send_signal(signal.SIGTERM)
    code, _, err = supervised.end()
    assert code == 0
    assert err.endswith("stopped cleanly: False\n")
    supervised.assert_nothing_left()


@pytest.mark.parametrize("supervised", ["dies-for-long"], indirect=True)
def test_a_child_that_has_died_and_is_not_started_again_has_not_stopped_cleanly(supervised: Run) -> None:
    supervised.until("restarting it")
    supervised.process.send_signal(signal.SIGTERM)
    code, _, err = supervised.end()
    assert code == 0
    assert err.endswith("stopped cleanly: False\n")


@pytest.mark.parametrize("supervised", ["refuses"], indirect=True)
def test_a_refusal_at_the_first_start_is_final(supervised: Run, tmp_path: Path) -> None:
    code, out, err = supervised.end()
    assert (code, out) == (1, "")
    assert err.endswith("rayka: no.such.config is not a setting\nstopped cleanly: False\n")
    assert (tmp_path / "lives").read_text() == "1"


@pytest.mark.parametrize("supervised", ["dies"], indirect=True)
def test_gives_up_after_several_failures(supervised: Run, tmp_path: Path) -> None:
    code, out, err = supervised.end()
    assert (code, out) == (4, "")
    assert "giving up: 3 starts in a row failed; the last: the broker process exited with code 3" in err
    assert (tmp_path / "lives").read_text() == "3"


@pytest.mark.parametrize("supervised", ["dies-after-first"], indirect=True)
def test_gives_up_also_after_a_run_that_was_ready(supervised: Run) -> None:
    child, _ = supervised.next_life()
    supervised.wait_ready()
    os.kill(child, signal.SIGKILL)
    code, _, err = supervised.end()
    assert code == 4
    assert "giving up: 3 starts" in err
