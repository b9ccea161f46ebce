"""What `rayka up` checks before it starts anything, and how it reads settings."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rayka.cli.attached import find
from rayka.cli.commands import up
from rayka.cli.exits import CliError, Exit
from rayka.cli.main import main
from rayka.cli.text.properties import parse_assignments, parse_properties
from rayka.client import runtime


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def test_properties_file_as_java_reads_it() -> None:
    text = r"""
# a comment
! another
num.partitions=3
  log.dirs : /a,\
             /b
log.retention.hours 24
greeting=caf\u00e9 \= \t tab
empty=
path=C:\\data
num.partitions=4
"""
    assert parse_properties(text) == {
        "num.partitions": "4",
        "log.dirs": "/a,/b",
        "log.retention.hours": "24",
        "greeting": "café = \t tab",
        "empty": "",
        "path": "C:\\data",
    }


def test_assignments() -> None:
    assert parse_assignments(["a=1", "b = x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(CliError) as error:
            parse_assignments([wrong])
        assert error.value.exit_code is Exit.USAGE


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ("PLAINTEXT://10.0.0.1:9092,SSL://10.0.0.1:9093", "10.0.0.1:9092"),
        ("PLAINTEXT://:9092", "0.0.0.0:9092"),
        ("", None),
    ],
)
def test_listener_of_a_server_properties_file(listeners: str, expected: str | None) -> None:
    assert up.listener_of({"listeners": listeners}) == expected


def test_a_port_in_use_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["up", "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path)]) == 1
    reason = "Address already in use; choose another address with --listen"
    assert capsys.readouterr().err == f"rayka: cannot listen on 127.0.0.1:{port}: {reason}\n"


def test_a_data_directory_serves_one_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with up.locked(tmp_path):
        assert main(["up", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"rayka: {tmp_path} is in use by another `rayka up` (process {os.getpid()})\n"
    with up.locked(tmp_path):
        pass


def test_a_broker_starts_while_another_command_looks_whether_one_runs(tmp_path: Path) -> None:
    up.make(tmp_path)
    with open(tmp_path / up.LOCK) as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        end = threading.Timer(0.02, fcntl.flock, (looking, fcntl.LOCK_UN))
        end.start()
        with up.locked(tmp_path):
            assert up.holder_of(tmp_path) == os.getpid()
        end.join()


_HOLDER = """
import signal, sys
from pathlib import Path
from rayka.cli.commands import up

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with up.locked(Path(sys.argv[1])) as lock:
    print("locked", flush=True)
    signal.sigwait({signal.SIGTERM})
    if sys.argv[2] == "cleanly":
        up.note_clean_stop(lock)
    if sys.argv[2] == "replaced":  # by the next broker on the directory
        (Path(sys.argv[1]) / up.LOCK).write_text("1\\n")
"""


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("cleanly", "Stopped the broker on {}.\n"),
        ("replaced", "Killed the broker on {}, which did not stop cleanly; the next start recovers its logs.\n"),
        ("killed", "Killed the broker on {}, which did not stop cleanly; the next start recovers its logs.\n"),
    ],
)
def test_down_says_whether_the_broker_had_to_be_killed(
    how: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with up.locked(tmp_path) as lock:
        up.note_clean_stop(lock)  # of an earlier broker
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path), how], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert main(["down", "--data-dir", str(tmp_path)]) == Exit.DONE
    assert capsys.readouterr().out == text.format(tmp_path)


def test_down_waits_until_a_lock_that_was_just_taken_names_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with up.locked(tmp_path):
        lock = tmp_path / up.LOCK
        lock.write_text("")
        monkeypatch.setattr(time, "sleep", lambda _: lock.write_text(f"{os.getpid()}\n"))
        assert up.holder_of(tmp_path) == os.getpid()


@pytest.mark.parametrize("content", ["", "broker\n", "\u00b2\n"])
def test_a_lock_that_names_no_process_is_one_clear_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_NAMED_WITHIN_S", 0.0)
    with up.locked(tmp_path):
        (tmp_path / up.LOCK).write_text(content)
        assert main(["down", "--data-dir", str(tmp_path)]) == Exit.FAILED
    assert capsys.readouterr().err == f"rayka: {tmp_path}/up.lock does not say which process holds it\n"


def test_a_broker_that_has_ended_meanwhile_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with up.locked(tmp_path):
        (tmp_path / up.LOCK).write_bytes(gone.stdout)
        assert main(["down", "--data-dir", str(tmp_path)]) == Exit.NOT_FOUND
    assert capsys.readouterr().err == f"rayka: no broker runs on {tmp_path}\n"


def test_down_ends_no_other_process_that_got_the_number_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends when its process was read from the lock."""
    sent: list[int] = []
    holders = iter([os.getpid(), None])
    monkeypatch.setattr(up, "holder_of", lambda _: next(holders))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *signals: sent.append(signals[1]))
    assert main(["down", "--data-dir", str(tmp_path)]) == Exit.NOT_FOUND
    assert sent == []


@pytest.mark.parametrize("listen", ["9092", "host:", ":9092", "host:http", "host:70000", "host:²"])
def test_a_wrong_listen_is_wrong_use(listen: str, tmp_path: Path) -> None:
    assert main(["up", "--listen", listen, "--data-dir", str(tmp_path)]) == 2


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["up", "--data-dir", str(file), "--listen", "127.0.0.1:0"]) == Exit.FAILED
    assert capsys.readouterr().err == f"rayka: cannot use {file}: it is not a directory\n"


def test_a_misspelt_setting_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    words = ("num.partition=4", "ssl.keystore.location=/keys", "num.network.threads=3", "num.partitions=2")
    settings = [word for setting in words for word in ("--config", setting)]
    assert main(["up", "--data-dir", str(file), "--listen", "127.0.0.1:0", *settings]) == Exit.FAILED
    misspelt, unserved, _ = capsys.readouterr().err.splitlines()
    assert misspelt == "rayka: num.partition is not a broker setting and has no effect; did you mean num.partitions?"
    assert unserved.startswith("rayka: without effect: ssl.keystore.location. TLS, SASL, ACLs")


def test_a_missing_config_file_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--config-file", str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert main(["up", "--config-file", sys.executable]) == Exit.USAGE
    assert capsys.readouterr().err == f"rayka: cannot read {sys.executable}: it is not a text file in UTF-8\n"


def test_a_broker_that_runs_is_found(tmp_path: Path) -> None:
    with pytest.raises(CliError) as error:
        find(None)
    assert error.value.exit_code is Exit.NOT_FOUND
    running = runtime.Running(os.getpid(), "127.0.0.1:9092", "127.0.0.1:6379", str(tmp_path / "data"))
    runtime.publish(running)
    assert find(None) == find(str(tmp_path / "data")) == running
    assert (tmp_path / "data" / runtime.NAME).stat().st_mode & 0o777 == 0o600
    runtime.withdraw(tmp_path / "data")
    with pytest.raises(CliError, match="name another one with --data-dir or --bootstrap-server, or start one with"):
        find(None)  # a broker that was started before may still run
    with pytest.raises(CliError, match="data: start one with `rayka up`"):
        find(str(tmp_path / "data"))


def test_a_broker_that_was_killed_is_not_found(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    runtime.publish(runtime.Running(int(gone.stdout), "h:1", "h:2", str(tmp_path)))
    with pytest.raises(CliError, match="no broker runs") as error:
        find(str(tmp_path))
    assert error.value.exit_code is Exit.NOT_FOUND


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = "import sys; from rayka.cli.main import main; main(['--help']); print(*sys.modules)"
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime < 1.0
    assert not {"ray", "numpy", "pyarrow", "asyncio", "uvloop", "confluent_kafka", "rich", "kio"} & set(loaded)
