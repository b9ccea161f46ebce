"""The port of a node belongs to one broker, and its processes share it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rayka.actors.node.port import free_port, reserve_port, runs_here
from rayka.cli.commands.up import check_port
from rayka.cli.exits import CliError
from rayka.errors import ErrorCode, RaykaError

HOST = "127.0.0.1"


def reserve(port: int, host: str = HOST, *, is_running: bool = False) -> socket.socket:
    return reserve_port(host, port, lambda: is_running, timeout_s=0.0)


def listening(port: int) -> socket.socket:
    """As the gateways and partition actors of a node listen."""
    process = socket.socket()
    process.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    process.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    process.bind((HOST, port))
    process.listen()
    return process


def test_the_processes_of_the_node_share_the_port_and_the_reservation_takes_no_connections() -> None:
    port = free_port(HOST)
    with reserve(port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
        with listening(port) as one, listening(port) as other:
            clients = [socket.create_connection((HOST, port)) for _ in range(8)]
            accepted: list[socket.socket] = []
            while len(accepted) < len(clients):
                ready, _, _ = select.select([one, other], [], [], 30)
                assert ready, "the kernel gave a connection to somebody else"
                accepted += [process.accept()[0] for process in ready]
            for connection in accepted + clients:
                connection.close()


@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])
@pytest.mark.parametrize("serves", [False, True])
def test_a_second_broker_on_the_port_is_refused_with_the_address(host: str, serves: bool) -> None:
    """Whether the first one listens yet or is still starting."""
    port = free_port(HOST)
    with reserve(port), listening(port) if serves else contextlib.nullcontext():
        with pytest.raises(RaykaError, match=f"cannot listen on {host}:{port}: Address already in use") as refused:
            reserve(port, host)
        assert refused.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "Cannot assign requested address"),
        ("unknown", "Name or service not known"),
        ("a" * 64, "too long"),
    ],
)
def test_a_host_that_is_not_this_machine_is_named_with_the_reason(
    host: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo

    def without_network(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_network)
    for reserved in (lambda: reserve(9092, host), lambda: free_port(host)):
        with pytest.raises(RaykaError, match=f"cannot listen on {host}:.*{reason}") as refused:
            reserved()
        assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_a_name_that_cannot_be_resolved_is_named_also_while_processes_of_the_node_run() -> None:
    with pytest.raises(RaykaError, match=r"cannot listen on a+:9092: .*too long"):
        reserve(9092, "a" * 64, is_running=True)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_name_that_has_only_an_address_of_ipv6_can_be_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    address = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address])
    with reserve(0, "ip6-localhost") as reserved:
        assert reserved.getsockname()[0] == "::1"


def test_only_one_of_several_brokers_that_start_at_once_gets_the_port() -> None:
    together = threading.Barrier(4)

    def start() -> None:
        together.wait(30)
        with contextlib.suppress(RaykaError):
            reserved.append(reserve(port))

    for _ in range(20):
        port, reserved = free_port(HOST), list[socket.socket]()
        threads = [threading.Thread(target=start) for _ in range(together.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in reserved:
            each.close()
        assert len(reserved) == 1


def test_connections_of_a_broker_before_do_not_keep_the_port() -> None:
    port = free_port(HOST)
    with listening(port) as before:
        client = socket.create_connection((HOST, port))
        before.accept()[0].close()  # waits in TIME_WAIT on this side
        client.close()
    reserve(port).close()


def test_a_starter_shares_the_port_with_the_processes_that_an_earlier_one_left() -> None:
    port = free_port(HOST)
    with listening(port), reserve(port, is_running=True):
        socket.create_connection((HOST, port)).close()
        with pytest.raises(RaykaError):
            reserve(port)


def test_only_processes_of_this_node_and_broker_count_as_running() -> None:
    """Another node of the cluster may have a controller while a broker of another cluster has the port here."""
    with tempfile.TemporaryDirectory(prefix="rayka-", dir="/tmp") as directory:  # the path of a socket is short
        assert not runs_here(directory)
        with socket.socket(socket.AF_UNIX) as channel:
            channel.bind(os.path.join(directory, "partitions-1-00.1.sock"))
            channel.listen()
            assert runs_here(directory)
        assert not runs_here(directory), "a killed process leaves its name behind"


def test_a_process_that_was_stopped_runs_and_holds_up_no_start() -> None:
    """Nothing takes the connections that wait for it, until there is no room for more of them."""
    with tempfile.TemporaryDirectory(prefix="rayka-", dir="/tmp") as directory, contextlib.ExitStack() as waiting:
        channel = waiting.enter_context(socket.socket(socket.AF_UNIX))
        channel.bind(os.path.join(directory, "partitions-1-00.1.sock"))
        channel.listen(0)
        waiting.enter_context(socket.socket(socket.AF_UNIX)).connect(channel.getsockname())
        assert runs_here(directory)


@pytest.fixture
def eager_client(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of a client that connects as soon as anybody listens."""
    outcomes: list[str] = []

    class WithClient(socket.socket):
        def listen(self, *backlog: int) -> None:
            super().listen(*backlog)
            with socket.socket() as client:
                client.settimeout(0.2)
                outcomes.append(errno.errorcode.get(client.connect_ex(self.getsockname()), "connected"))

    monkeypatch.setattr("socket.socket", WithClient)
    return outcomes


def test_no_client_is_connected_and_reset_while_a_port_is_reserved(eager_client: list[str]) -> None:
    reserve(free_port(HOST)).close()
    assert eager_client == ["EAGAIN"], "the client must wait"


def test_no_client_is_connected_and_reset_while_a_command_looks_at_the_port(eager_client: list[str]) -> None:
    check_port(HOST, free_port(HOST))
    assert eager_client in ([], ["EAGAIN"])


@pytest.mark.parametrize("holder", [listening, reserve])
def test_a_command_that_looks_at_the_port_finds_who_holds_it(holder: Callable[[int], socket.socket]) -> None:
    port = free_port(HOST)
    with holder(port), pytest.raises(CliError, match="Address already in use"):
        check_port(HOST, port)
    check_port(HOST, port)
