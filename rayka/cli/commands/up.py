"""`rayka up`: checks its options, and starts a broker."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Command
from rayka.cli.text import properties
from rayka.client import runtime
from rayka.types import is_number

LOCK = "up.lock"
LOG = "up.log"
STOPPED = "stopped"
"""Stands in the lock, behind the process id, after a clean stop."""
STOP_TIMEOUT_S = 20
_NAMED_WITHIN_S = 1.0
_LOOKED_WITHIN_S = 0.1
DEFAULT_LISTEN = "127.0.0.1:9092"

EXAMPLES = """\
examples:
  rayka up                                    a broker on 127.0.0.1:9092, data in ~/.local/share/rayka
  rayka up --listen 127.0.0.1:0               on a free port; the first line of output names it
  rayka up --data-dir /srv/rayka --config log.retention.hours=24 --config num.partitions=4
  rayka up --config-file server.properties    Kafka's names; --config overrides the file
  rayka up --address auto --listen 0.0.0.0:9092
                                              on the Ray cluster on this machine
  rayka up --config remote.log.storage.system.enable=true --config rsm.config.url=file:///mnt/segments
                                              with a store for tiered topics; s3://BUCKET/PATH works too

The command runs in the foreground. Ctrl-C or SIGTERM stops the broker and, if `rayka up` started it, Ray. With
--background it returns when the broker is ready, and the broker logs to DIR/up.log; `rayka down` stops it.
Exit codes: 0 stopped when asked, 1 could not start or stop cleanly, 2 wrong usage, 4 kept failing.
"""


@click.command("up", cls=Command, epilog=EXAMPLES)
@click.option("--listen", metavar="HOST:PORT", help=f"Where Kafka clients connect (default {DEFAULT_LISTEN}).")
@click.option("--data-dir", metavar="DIR", help="Where the logs are kept (default ~/.local/share/rayka).")
@click.option("--config", metavar="NAME=VALUE", multiple=True, help="A broker setting; may be repeated.")
@click.option("--config-file", metavar="FILE", help="Broker settings, as in server.properties.")
@click.option("--address", metavar="RAY_ADDRESS", help="Use the Ray cluster at this address (`auto`: on this machine).")
@click.option("--dashboard", is_flag=True, help="Start Ray's dashboard too.")
@click.option("--background", is_flag=True, help="Return when the broker is ready; it keeps running.")
@click.pass_obj
def command(
    arguments: Sequence[str],
    listen: str | None,
    data_dir: str | None,
    config: Sequence[str],
    config_file: str | None,
    address: str | None,
    dashboard: bool,
    background: bool,
) -> Exit:
    """Start a broker and keep it running."""
    from rayka.cli.daemon.supervisor import Supervisor
    from rayka.config import BrokerConfig

    configs = broker_configs(config, config_file)
    for warning in BrokerConfig.parse(configs).warnings():  # and says what is wrong before Ray is started
        print(f"rayka: {warning}", file=sys.stderr)
    listen = listen or listener_of(configs) or DEFAULT_LISTEN
    host, port = split_listen(listen)
    directory = Path(data_dir).resolve() if data_dir else runtime.default_data_dir()
    if background:
        return run_in_background(directory, arguments)
    with locked(directory) as lock:
        if address is None:
            check_port(host, port)
        settings = {
            "data_dir": str(directory),
            "listen": listen,
            "configs": configs,
            "address": address,
            "dashboard": dashboard,
            "supervisor_pid": os.getpid(),
        }
        supervisor = Supervisor([sys.executable, "-m", "rayka.cli.daemon.serve"], settings)
        exit_code = supervisor.run()
        if supervisor.stopped_cleanly:
            note_clean_stop(lock)
        return exit_code


def run_in_background(data_dir: Path, arguments: Sequence[str]) -> Exit:
    """Run the same command detached from this terminal; return when it is ready or has failed."""
    command = [sys.executable, "-m", "rayka", *(word for word in arguments if word != "--background")]
    make(data_dir)
    log = data_dir / LOG
    with log.open("ab") as errors:
        start = errors.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    assert process.stdout is not None
    ready = process.stdout.readline().decode()
    if ready:
        print(ready, end="", flush=True)
        print(f"The data is in {data_dir}; the broker's log is {log}.", flush=True)
        return Exit.DONE
    with log.open(errors="replace") as lines:
        lines.seek(start)
        sys.stderr.write(lines.read())
    return Exit(process.wait())


def stop(data_dir: Path) -> bool:
    """End the `rayka up` that holds the data directory; False if it did not stop cleanly. Raises CliError."""
    pid = holder_of(data_dir)
    try:
        if pid is None:
            raise ProcessLookupError
        watch = os.pidfd_open(pid)
        if holder_of(data_dir) != pid:  # it has ended, and the number may be that of another process by now
            raise ProcessLookupError
        signal.pidfd_send_signal(watch, signal.SIGTERM)
    except ProcessLookupError:
        raise CliError(f"no broker runs on {data_dir}", Exit.NOT_FOUND) from None
    if not select.select([watch], [], [], STOP_TIMEOUT_S)[0]:
        raise CliError(f"the broker on {data_dir} (process {pid}) did not stop within {STOP_TIMEOUT_S} s")
    return (data_dir / LOCK).read_text().split() == [str(pid), STOPPED]


def broker_configs(config: Sequence[str], config_file: str | None) -> dict[str, str]:
    """The settings of the file, overridden by those of the arguments. Raises CliError(USAGE)."""
    configs: dict[str, str] = {}
    if config_file:
        try:
            configs = properties.parse_properties(Path(config_file).read_text())
        except OSError as error:
            raise CliError(f"cannot read {config_file}: {error.strerror}", Exit.USAGE) from None
        except UnicodeDecodeError:
            raise CliError(f"cannot read {config_file}: it is not a text file in UTF-8", Exit.USAGE) from None
    return configs | properties.parse_assignments(config)


def listener_of(configs: dict[str, str]) -> str | None:
    """HOST:PORT of the first of `listeners`, None if they are not set. `PLAINTEXT://:9092` is every address."""
    first = configs.get("listeners", "").split(",")[0].strip()
    if not first:
        return None
    address = first.partition("://")[2] or first
    return f"0.0.0.0{address}" if address.startswith(":") else address


def split_listen(listen: str) -> tuple[str, int]:
    """Host and port. Raises CliError(USAGE) if they are not there."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not is_number(port) or int(port) > 65535:
        raise CliError(f"--listen {listen!r} is not of the form HOST:PORT, with a port from 0 to 65535", Exit.USAGE)
    return host, int(port)


def check_port(host: str, port: int) -> None:
    """Raises CliError if the port cannot be listened on: sooner and plainer than the gateway would.

    A port where somebody listens cannot be bound. To listen too would take connections of clients, and reset them.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = f"cannot listen on {host}:{port}: {error.strerror}; choose another address with --listen"
        raise CliError(reason) from None


def make(data_dir: Path) -> None:
    """Makes the data directory. Raises CliError if it cannot be written to."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        (data_dir / LOCK).touch()
    except FileExistsError:
        raise CliError(f"cannot use {data_dir}: it is not a directory") from None
    except OSError as error:
        raise CliError(f"cannot use {data_dir}: {error.strerror}") from None


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[TextIO]:
    """Holds the data directory for this process; it is made if it is not there. Yields the lock's open file.

    The kernel lets go of the lock when the process ends, however it ends. Raises CliError if another
    process holds it.
    """
    make(data_dir)
    with (data_dir / LOCK).open("a+") as file:
        if not _lock(file):
            file.seek(0)
            raise CliError(f"{data_dir} is in use by another `rayka up` (process {file.readline().strip()})")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield file


def _lock(file: TextIO) -> bool:
    """Whether this process has the lock now. `holder_of` of another may have it for a moment."""
    deadline = time.monotonic() + _LOOKED_WITHIN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def note_clean_stop(lock: TextIO) -> None:
    """Let `stop` know that nothing was killed. What was killed can't say that it was."""
    lock.write(f"{STOPPED}\n")


def holder_of(data_dir: Path) -> int | None:
    """The process id of the `rayka up` that holds the data directory, None if none does. Raises CliError."""
    try:
        with open(data_dir / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named_in(data_dir / LOCK)
    except OSError:
        pass
    return None


def _named_in(lock: Path) -> int:
    """The process that a lock names. One that has just taken it writes that a moment later."""
    deadline = time.monotonic() + _NAMED_WITHIN_S
    while True:
        pid = lock.read_text(errors="replace").partition("\n")[0]
        if is_number(pid):
            return int(pid)
        if time.monotonic() >= deadline:
            raise CliError(f"{lock} does not say which process holds it")
        time.sleep(0.01)
