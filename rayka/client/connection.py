"""How a Python program connects to a cluster: by starting one here, or by connecting to a running one."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import ray

from rayka.actors.controller.watch import ImageWatch, NamedController
from rayka.actors.node.answers import answers, no_answer
from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.actors.node.view import ClusterView
from rayka.client import runtime
from rayka.client.loop import LoopThread
from rayka.errors import ErrorCode, RaykaError
from rayka.types import is_number

if TYPE_CHECKING:
    from rayka.actors.node.node import RunningNode

_CONNECT_TIMEOUT_S = 120.0
_PATIENCE_S = 5.0
_SHOWN_ACTORS = 8
_RETRY_S = 0.2
_ANSWER_S = 1.0
_MAX_PORT = 65535
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings
_HTTP2_FRAME_HEAD = 9
_HTTP2_SETTINGS = b"\4"  # the type of the first frame from each side


class ClusterConnection:
    """A view of the cluster on a loop of its own.

    `node` is set where this process started the broker; `lock` is then the descriptor that holds the data directory.
    """

    def __init__(
        self, view: ClusterView, loop: LoopThread, node: RunningNode | None, owns_ray: bool, lock: int | None
    ) -> None:
        self.broker = view
        self.loop = loop
        self._node = node
        self._owns_ray = owns_ray
        self._lock = lock

    @property
    def bootstrap_servers(self) -> str:
        """What a Kafka client is given to find the cluster: the brokers that serve, or all while none does."""
        brokers = sorted(self.broker.image.brokers.values(), key=lambda broker: broker.broker_id)
        serving = [broker for broker in brokers if not broker.fenced] or brokers
        return ",".join(f"{broker.host}:{broker.port}" for broker in serving)

    def close(self) -> None:
        """Leave the cluster, which keeps running. Safe to repeat."""
        if not self.loop.is_closed:
            self.loop.run(self.broker.stop())
            self.loop.close()

    def stop(self) -> None:
        """Stop the broker of this node cleanly, if this process started it, and the Ray that came with it.

        Safe to repeat.
        """
        self.close()
        node, owns_ray, lock = self._node, self._owns_ray, self._lock
        self._node, self._owns_ray, self._lock = None, False, None
        if owns_ray:
            for call in reversed(_before_ray_ends):
                call()
        if node is not None:
            node.stop()
        if owns_ray:
            ray.shutdown()
        if node is not None and owns_ray:
            from rayka.actors.node.node import remove_ray_files

            remove_ray_files(node.spec.data_dir)
        if lock is not None:
            os.close(lock)


_before_ray_ends: list[Callable[[], None]] = []


def before_ray_ends(call: Callable[[], None]) -> Callable[[], None]:
    """Call this before the end of a broker that ends Ray in this process too; what was added last is called first."""
    _before_ray_ends.append(call)
    return call


def start(
    data_dir: str | None = None,
    listen: str = "127.0.0.1:9092",
    configs: Mapping[str, str] | None = None,
    address: str | None = None,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    dashboard: bool = False,
    checks_port: bool = False,
) -> ClusterConnection:
    """Start a broker on this machine; see `rayka.start`. Who only joins one does not import the broker.

    `checks_port`: refuse a port that is taken before Ray is started, and not after it.
    """
    from rayka.actors.node.node import lock_data_dir, node_spec, require_port, start_node, start_ray

    is_temporary = data_dir is None
    data_dir = os.path.abspath(data_dir or os.path.join(tempfile.gettempdir(), f"rayka-data-{os.getuid()}"))
    lock = lock_data_dir(data_dir)
    if is_temporary:
        print(f"rayka: the data is in {data_dir}; give data_dir to keep it elsewhere", file=sys.stderr)
    if address is not None:
        take_token()
    try:
        if checks_port:
            require_port(data_dir, listen, namespace)
        owns_ray = start_ray(address, data_dir, dashboard)
    except BaseException:
        os.close(lock)
        raise
    try:
        node = start_node(node_spec(data_dir, listen, configs or {}, namespace))
        return _connection(node.controller, namespace, node, owns_ray, lock)
    except BaseException:
        if owns_ray:
            ray.shutdown()
        os.close(lock)
        raise


def connect(address: str | None = None, *, namespace: str = DEFAULT_NAMESPACE) -> ClusterConnection:
    """Join a cluster that runs; see `rayka.connect`."""
    started = not ray.is_initialized()
    if started:
        take_token()
        where = address or _usual_address()
        if where != "auto" or "RAY_ADDRESS" in os.environ:
            require_ray(where)
        try:
            ray.init(address=where, log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise _no_ray(where, error) from None
        except ValueError as error:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"{where!r} is not an address of Ray: {error}") from None
    return _connection(_find_controller(namespace), namespace, None, started)


def _find_controller(namespace: str) -> NamedController:
    """Look for some seconds: Ray was seen not to find the controller of a broker that served.

    Raises BROKER_NOT_AVAILABLE.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return NamedController(namespace)
        except RaykaError as error:
            if time.monotonic() >= deadline_s:
                raise RaykaError(error.code, f"{error.message}, {_what_is_there()}") from None
        time.sleep(_RETRY_S)


def _what_is_there() -> str:
    """Which Ray cluster it is, and its named actors: the broker may be in another cluster or namespace."""
    address = ray.get_runtime_context().gcs_address
    try:
        found = cast(list[dict[str, str]], ray.util.list_named_actors(all_namespaces=True))
    except ray.exceptions.RayError as error:
        return f"whose GCS is at {address} and does not answer ({error})"
    names = sorted(f"{each['namespace']}/{each['name']}" for each in found)
    shown = ", ".join(names[:_SHOWN_ACTORS]) + (", ..." if len(names) > _SHOWN_ACTORS else "")
    return f"whose GCS is at {address} and whose named actors are: {shown or 'none'}"


def require_ray(where: str | None = None) -> None:
    """Raises BROKER_NOT_AVAILABLE if no Ray answers at `where`, by default where `connect` looks for it.

    Ray itself waits for a minute. If nothing listens there, this waits for some seconds: the GCS of `rayka up` is back
    about a second after it has died.
    """
    if ray.is_initialized():
        return
    where = where or _usual_address()
    deadline_s = time.monotonic() + _PATIENCE_S
    while (refused := _refused(where)) is not None:
        if time.monotonic() >= deadline_s:
            raise refused
        time.sleep(_RETRY_S)


def _refused(where: str) -> RaykaError | None:
    """The error if nothing listens there. Raises BROKER_NOT_AVAILABLE if something other than Ray does."""
    services: Any = ray._private.services
    try:
        address = services.canonicalize_bootstrap_address_or_die(where)  # Ray takes the node's address for 127.0.0.1
    except OSError as error:
        return _no_ray(where, error)
    except ValueError:  # not HOST:PORT, which Ray may know
        return None
    where = address if where == "auto" else where
    failures = [_failure_at(place, where) for place in dict.fromkeys((where, address))]
    return None if None in failures else failures[-1]


def _failure_at(place: str, where: str) -> RaykaError | None:
    host, _, port = place.rpartition(":")
    if "://" in place or not is_number(port):  # Ray may know it
        return None
    try:
        if int(port) > _MAX_PORT:  # the resolver would take the port modulo 65536
            raise OSError(f"{port} is not a port")
        with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S) as listener:
            is_ray = "RAY_USE_TLS" in os.environ or _speaks_http2(listener)
    except OSError as error:
        return _no_ray(where, error)
    if not is_ray:
        hint = "without an address, the broker that `rayka up` started last is found"
        raise RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, f"what listens at {where} is not a Ray cluster; {hint}")
    return None


def _speaks_http2(listener: socket.socket) -> bool:
    """Whether the other side speaks HTTP/2, as Ray does and a Kafka listener does not; also if it is slow to answer."""
    listener.settimeout(_ANSWER_S)
    try:
        listener.sendall(_HTTP2_PREFACE)
        return listener.recv(_HTTP2_FRAME_HEAD)[3:4] == _HTTP2_SETTINGS
    except TimeoutError:
        return True
    except OSError:
        return False


def _no_ray(where: str, error: OSError) -> RaykaError:
    reason = error.strerror or error
    return RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, f"no Ray cluster answers at {where} ({reason}); try `rayka up`")


def _usual_address() -> str:
    """Where RAY_ADDRESS says, else the Ray of the broker that `rayka up` started last, else what Ray finds itself."""
    if "RAY_ADDRESS" in os.environ:
        return "auto"
    running = runtime.find(runtime.latest_data_dir())
    return "auto" if running is None else running.address


def take_token() -> None:
    """Join with the user's token if there is one: Ray asks for it when it starts a cluster, not when it joins one."""
    raylet: Any = ray._raylet
    loader = raylet.AuthenticationTokenLoader.instance()
    if "RAY_AUTH_MODE" not in os.environ and loader.has_token(ignore_auth_mode=True):
        os.environ["RAY_AUTH_MODE"] = "token"
        raylet.Config.initialize("")


def _connection(
    controller: Any, namespace: str, node: RunningNode | None, owns_ray: bool, lock: int | None = None
) -> ClusterConnection:
    (spec,) = answers({"the controller": controller.spec.remote()}, _CONNECT_TIMEOUT_S)
    loop = LoopThread()

    async def open_view() -> ClusterView:
        watch = ImageWatch(controller, f"client-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        try:
            await asyncio.wait_for(watch.start(), _CONNECT_TIMEOUT_S)
        except TimeoutError:
            raise no_answer(["the metadata of the controller"], _CONNECT_TIMEOUT_S) from None
        return ClusterView(controller, spec, watch)

    try:
        return ClusterConnection(loop.run(open_view()), loop, node, owns_ray, lock)
    except BaseException:
        loop.close()
        raise
