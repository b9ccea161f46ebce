"""One node's broker: start its actors, find running ones, stop them in order."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray._private.node as ray_node
import ray._private.services as ray_services
import ray.exceptions

from rayka.actors.controller.actor import ControllerActor
from rayka.actors.node.answers import answers
from rayka.actors.node.gateway import GatewayActor
from rayka.actors.node.options import actor_options
from rayka.actors.node.port import free_port, reserve_port, runs_here
from rayka.actors.node.ray_settings import added, ray_settings
from rayka.actors.node.spec import CONTROLLER_NAME, DEFAULT_NAMESPACE, NodeSpec, private_dir, socket_dir_of
from rayka.config import BrokerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory.checkpoints import encode_uuid
from rayka.storage.directory.meta_properties import MetaProperties
from rayka.storage.files import RealFiles
from rayka.types import is_number

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 3.0
_OBJECT_STORE_BYTES = 128 * 1024 * 1024


def start_ray(address: str | None, data_dir: str, dashboard: bool = False) -> bool:
    """Attach to the Ray cluster at `address`, or start one in this process; returns whether this process joined it.

    The embedded one is modest: a small object store, no dashboard unless asked for. Its own ports want Ray's
    token. What earlier ones on the same data directory left behind in the temporary directory is removed.
    """
    if ray.is_initialized():
        return False
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        return True
    remove_ray_files(data_dir)
    temp_dir = ray_dir(data_dir)
    os.makedirs(temp_dir, mode=0o700)
    settings = ray_settings(os.environ, gcs_dir=os.path.join(temp_dir, "gcs"))
    with added(os.environ, settings), contextlib.nullcontext() if dashboard else _fewer_processes():
        ray.init(
            address="local",  # whatever RAY_ADDRESS names
            include_dashboard=dashboard,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.WARNING,
            _node_ip_address="127.0.0.1",
            _temp_dir=temp_dir,
        )
    return True


@contextlib.contextmanager
def _fewer_processes() -> Iterator[None]:
    """Let Ray start without its API server, for whose start it waits, and without its autoscaler.

    Without the dashboard the API server only reports usage statistics, and there are no nodes to add. Ray has no
    setting for either. It takes an API server that did not start for none.
    """
    node: Any = ray_node.Node
    services: Any = ray_services
    start_monitor, start_api_server = node.start_monitor, services.start_api_server
    node.start_monitor = lambda self: None
    services.start_api_server = lambda *args, **kwargs: (None, None)
    try:
        yield
    finally:
        node.start_monitor, services.start_api_server = start_monitor, start_api_server


def remove_ray_files(data_dir: str) -> None:
    """Remove what an embedded Ray on this data directory left behind: logs and sockets."""
    shutil.rmtree(ray_dir(data_dir), ignore_errors=True)


def ray_dir(data_dir: str) -> str:
    """Where an embedded Ray on this data directory keeps its logs and sockets."""
    return f"{private_dir(data_dir)}-ray"


def lock_data_dir(data_dir: str) -> int:
    """Take the data directory for this process, as long as the returned descriptor is open.

    Raises BROKER_NOT_AVAILABLE if another broker has it.
    """
    RealFiles().make_lasting_directory(os.path.abspath(data_dir))
    descriptor = os.open(os.path.join(data_dir, ".broker.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        message = f"another rayka runs on {data_dir}"
        raise RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, message) from None
    return descriptor


def node_spec(data_dir: str, listen: str, configs: Mapping[str, str], namespace: str = DEFAULT_NAMESPACE) -> NodeSpec:
    """The spec of this node's broker, from its settings. Raises INVALID_CONFIG for a setting that can't be."""
    config = BrokerConfig.parse(configs)
    data_dir = os.path.abspath(os.path.expanduser(data_dir))
    host, port = parse_address(listen)
    given = "log.dirs" in configs or "log.dir" in configs
    log_dirs = config.log_dirs if given else (os.path.join(data_dir, "logs"),)
    port = port or free_port(host)
    listener = _listener_name(config, configs)
    advertised = _advertised(config, listener) or (_reachable(host), port)
    return NodeSpec(
        namespace=namespace,
        node_id=ray.get_runtime_context().get_node_id(),
        broker_id=int(configs.get("node.id", configs.get("broker.id", "-1"))),
        data_dir=data_dir,
        log_dirs=log_dirs,
        host=host,
        port=port,
        advertised_host=advertised[0],
        advertised_port=advertised[1],
        configs={
            **configs,
            "listeners": f"{listener}://{_in_url(host)}:{port}",
            "advertised.listeners": f"{listener}://{_in_url(advertised[0])}:{advertised[1]}",
            "log.dirs": ",".join(log_dirs),
        },
        rack=configs.get("broker.rack"),
    )


def _listener_name(config: BrokerConfig, configs: Mapping[str, str]) -> str:
    """The node has one listener for clients: the first of `listeners`."""
    return config.listeners[0].name if "listeners" in configs else "PLAINTEXT"


def _advertised(config: BrokerConfig, listener: str) -> tuple[str, int] | None:
    """The address that clients are given: that of the listener, or the first if none has its name."""
    if not config["advertised.listeners"]:
        return None
    addresses = config.advertised_listeners
    chosen = next((each for each in addresses if each.name == listener), addresses[0])
    others = ", ".join(f"{each.name}://{each.host}:{each.port}" for each in addresses if each is not chosen)
    if others:
        logger.warning("clients are given %s:%d; these advertised.listeners are not in use: %s",
                       chosen.host, chosen.port, others)  # fmt: skip
    return chosen.host, chosen.port


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPv6]:PORT`. Raises INVALID_CONFIG if it is neither."""
    host, separator, port = text.rpartition(":")
    if not separator or not is_number(port) or int(port) > 65535:
        raise RaykaError(ErrorCode.INVALID_CONFIG, f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)


def _reachable(host: str) -> str:
    """A listener on every interface is advertised under the name of the machine."""
    return socket.gethostname() if host in ("0.0.0.0", "::", "") else host


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A running node."""

    spec: NodeSpec
    controller: Any
    gateways: tuple[Any, ...]
    port: socket.socket

    @property
    def bootstrap_servers(self) -> str:
        """What a Kafka client is given to find the cluster."""
        return f"{self.spec.advertised_host}:{self.spec.advertised_port}"

    def stop(self) -> None:
        """Stop serving, close the logs cleanly, end the actors. Takes at most some seconds."""
        _stop_actors(self.gateways)
        with contextlib.suppress(ray.exceptions.RayError):
            _stop_actors(tuple(ray.get(self.controller.partition_actors.remote(), timeout=STOP_TIMEOUT_S).values()))
        _stop_actors((self.controller,))
        shutil.rmtree(self.spec.socket_dir, ignore_errors=True)
        self.port.close()


def require_port(data_dir: str, listen: str, namespace: str) -> None:
    """Look before Ray is started whether the port is free, or held by processes of this node. Raises INVALID_CONFIG."""
    host, port = parse_address(listen)
    try:
        reserve_port(host, port, lambda: runs_here(socket_dir_of(namespace, data_dir))).close()
    except RaykaError as error:
        raise RaykaError(error.code, f"{error.message}; choose another address with `listen`") from error


def start_node(spec: NodeSpec) -> RunningNode:
    """Start the node's actors, or find them if they run, and return when clients are served.

    Raises REQUEST_TIMED_OUT if one of them does not start, and INVALID_CONFIG if the port is not free.
    """
    port = reserve_port(spec.host, spec.port, lambda: runs_here(spec.socket_dir))
    try:
        return _start_actors(spec, port)
    except BaseException:
        port.close()
        raise


def _start_actors(spec: NodeSpec, port: socket.socket) -> RunningNode:
    for directory in (spec.data_dir, *spec.log_dirs):
        RealFiles().make_lasting_directory(os.path.abspath(directory))
    spec = replace(spec, cluster_id=_known_cluster_id(spec))
    controller: Any = ray.remote(ControllerActor).options(**actor_options(spec, CONTROLLER_NAME)).remote(spec)
    directories = {path: _directory_id(path) for path in spec.log_dirs}
    texts = tuple(encode_uuid(directory_id) for directory_id in directories.values())
    (spec,) = answers({"the start of the controller": controller.start_node.remote(spec, texts)})
    for path, directory_id in directories.items():
        MetaProperties.settle(RealFiles(), path, MetaProperties(spec.cluster_id, spec.broker_id, directory_id))
    count = int(BrokerConfig.parse(spec.configs)["gateways.per.node"])
    gateway_class: Any = ray.remote(GatewayActor)
    gateways = tuple(
        gateway_class.options(**actor_options(spec, spec.gateway_name(index))).remote(spec, index)
        for index in range(count)
    )
    started = {f"the start of gateway {index}": gateway.ready.remote() for index, gateway in enumerate(gateways)}
    answers({"the start of the partition actors": controller.ready.remote(), **started})
    return RunningNode(spec, controller, gateways, port)


def _known_cluster_id(spec: NodeSpec) -> str:
    """The cluster that the log directories belong to; empty if all of them are new."""
    known = (MetaProperties.read(RealFiles(), path) for path in spec.log_dirs)
    return next((properties.cluster_id for properties in known if properties is not None), "")


def _directory_id(path: str) -> uuid.UUID:
    """The id by which a log directory is known, wherever it is moved to (KIP-858); a new one if it has none."""
    known = MetaProperties.read(RealFiles(), path)
    return uuid.uuid4() if known is None else known.directory_id


def _stop_actors(actors: tuple[Any, ...]) -> None:
    stopping = [actor.stop.remote() for actor in actors]
    if stopping:
        ray.wait(stopping, num_returns=len(stopping), timeout=STOP_TIMEOUT_S)
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor, no_restart=True)
