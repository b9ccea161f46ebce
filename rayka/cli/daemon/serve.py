"""The broker process under `rayka up`: a Ray driver that starts the broker and watches over Ray.

It reads its settings from standard input and reports to the supervisor (see `rayka.cli.daemon.child`). It ends
when told (SIGTERM: the broker is stopped in order), and at once when the raylet is gone: a driver cannot outlive it,
and the supervisor starts everything again. A GCS that dies is started again in place, and so are Ray's agents.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayka.cli import ray_messages
from rayka.cli.daemon import agent
from rayka.cli.daemon.console import log
from rayka.cli.daemon.gcs_server import NAME as GCS_SERVER
from rayka.cli.daemon.gcs_server import GcsServer
from rayka.types import is_number

if TYPE_CHECKING:
    from rayka.actors.controller.guard import ControllerGuard
    from rayka.client.cluster import Cluster

WATCHED = (GCS_SERVER, "raylet")
RAY_DOWN = 70
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the supervisor wants served. `address` is None for a Ray of our own."""

    data_dir: str
    listen: str
    configs: dict[str, str]
    address: str | None
    dashboard: bool
    supervisor_pid: int
    status_fd: int

    def tell(self, news: Mapping[str, str]) -> None:
        """One line to the supervisor."""
        os.write(self.status_fd, json.dumps(news).encode() + b"\n")


def main() -> int:
    """Serves; the exit code matters only to the log."""
    settings = Settings(**json.load(sys.stdin))
    os.set_inheritable(settings.status_fd, False)
    try:
        cluster = start(settings)
    except Exception as error:
        settings.tell({"failed": one_line(error)})
        return 1
    return serve(settings, cluster)


def start(settings: Settings) -> Cluster:
    """Starts Ray and the broker. Raises what they raise."""
    if settings.address is not None:
        require_ray(settings.address)
    else:  # as Ray would decide by itself, but with a warning
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        agent.install()
    from rayka.client import connection
    from rayka.client.cluster import Cluster

    ray_messages.divert(lambda message: log(ray_messages.keep(message)))
    started = connection.start(  # `rayka.start` would repeat the warnings of `rayka up`
        settings.data_dir, settings.listen, settings.configs, settings.address, dashboard=settings.dashboard
    )
    return Cluster(started)


def require_ray(address: str) -> None:
    """Raises ConnectionError if nothing listens at HOST:PORT, which Ray itself takes twenty seconds to say."""
    host, _, port = address.rpartition(":")
    if is_number(port):
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


def serve(settings: Settings, cluster: Cluster) -> int:
    """Announces the broker and waits for the end of it."""
    stop = stop_signal()
    publish(settings, cluster)
    settings.tell({"ready": cluster.bootstrap_servers, "address": ray_address()})
    guard = guard_controller(settings)
    loss = wait_for_end(stop, RayDaemons.watched())
    if loss is not None:
        settings.tell({"down": loss})
        os._exit(RAY_DOWN)  # Ray's exit handlers would wait for the daemons that are gone
    withdraw(settings)
    guard.stop()
    cluster.stop()
    return 0


def guard_controller(settings: Settings) -> ControllerGuard:
    """Say when the controller does not come back; start everything again when Ray has given it up."""
    from rayka.actors.controller.guard import ControllerGuard
    from rayka.actors.node.spec import DEFAULT_NAMESPACE

    def lost(reason: str) -> None:
        settings.tell({"down": reason})
        os._exit(RAY_DOWN)

    guard = ControllerGuard(DEFAULT_NAMESPACE, log, lost)
    guard.start()
    return guard


def publish(settings: Settings, cluster: Cluster) -> None:
    """Tells the other commands where the broker is."""
    from rayka.client import runtime

    runtime.publish(
        runtime.Running(
            pid=settings.supervisor_pid,
            bootstrap_servers=cluster.bootstrap_servers,
            address=ray_address(),
            data_dir=settings.data_dir,
        )
    )


def ray_address() -> str:
    """Where others join this Ray cluster."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def withdraw(settings: Settings) -> None:
    """The broker is about to stop."""
    from rayka.client import runtime

    runtime.withdraw(Path(settings.data_dir))


class RayDaemons:
    """The daemons of Ray that the broker here needs: the raylet, and the GCS where this process started it.

    The GCS is started again in place when it dies (`gcs_server`); the raylet takes its actors with it.
    """

    def __init__(self, raylet_pid: int, gcs_server: GcsServer | None) -> None:
        self._raylet = os.pidfd_open(raylet_pid)
        self._gcs_server = gcs_server

    @classmethod
    def watched(cls) -> RayDaemons:
        """The ones that this process started, or the raylet of this machine when Ray was started by somebody else."""
        import ray

        node: Any = ray._private.worker._global_node
        started = {name: infos[0].process.pid for name, infos in node.all_processes.items() if name in WATCHED}
        if not started:
            return cls(listener_of(node.raylet_socket_name), None)
        port = int(ray_address().rpartition(":")[2])
        return cls(started["raylet"], GcsServer(started[GCS_SERVER], port, fate_shared=True))

    @property
    def pidfds(self) -> list[int]:
        """What to poll: readable when a daemon is gone."""
        return [self._raylet] + ([self._gcs_server.pidfd] if self._gcs_server else [])

    def ended(self, pidfd: int) -> str | None:
        """Start the daemon again if that is possible; otherwise return what was lost, in words."""
        if pidfd == self._raylet or self._gcs_server is None:
            return "raylet is gone"
        if not self._gcs_server.has_storage:
            return f"{GCS_SERVER} is gone"
        process = self._gcs_server.restart()
        if process is None:
            return f"{GCS_SERVER} keeps dying"
        _replace(process)
        log(f"Ray's {GCS_SERVER} died and was restarted in place")
        return None


def _replace(process: subprocess.Popen[bytes]) -> None:
    """Let Ray's shutdown end the new gcs_server instead of the old one."""
    import ray

    node: Any = ray._private.worker._global_node
    infos = node.all_processes[GCS_SERVER]
    infos[0] = infos[0]._replace(process=process)


def listener_of(path: str) -> int:
    """The process that listens on a Unix socket, as the kernel knows it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


def stop_signal() -> socket.socket:
    """A socket that becomes readable when the process gets SIGTERM or SIGINT. Takes the signals from Ray."""
    readable, written = socket.socketpair()
    written.setblocking(False)
    signal.set_wakeup_fd(written.detach())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return readable


def wait_for_end(stop: socket.socket, daemons: RayDaemons) -> str | None:
    """None when told to stop; the reason when a daemon is gone and cannot be started again."""
    while True:
        readable, _, _ = select.select([stop.fileno(), *daemons.pidfds], [], [])
        if stop.fileno() in readable and any(number in (signal.SIGTERM, signal.SIGINT) for number in stop.recv(4096)):
            return None
        for pidfd in readable:
            if pidfd != stop.fileno() and (loss := daemons.ended(pidfd)) is not None:
                return loss


def one_line(error: BaseException) -> str:
    """The error as one line, without the stack that Ray puts into its messages."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
