"""A program that finds no Ray is told so at once; one that finds it learns where the brokers are."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import ray

import rayka
import rayka.spark
from rayka.client import connection
from rayka.client.connection import ClusterConnection
from rayka.errors import ErrorCode, RaykaError

HOSTS = (("b", 2), ("a", 1))


@pytest.fixture
def nowhere(monkeypatch):
    """A port at which nothing listens, where the program looks for Ray."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connection, "_PATIENCE_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        yield port


@contextlib.contextmanager
def listener(answer):
    """HOST:PORT where one connection gets this answer and is closed."""
    with socket.create_server(("", 0)) as server:  # Ray turns 127.0.0.1 into the address of the node
        server.settimeout(60)

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.settimeout(60)
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join()


def test_a_client_names_where_ray_did_not_answer(nowhere, monkeypatch):
    def fail(address, **settings):
        raise ConnectionError("Failed to connect to Ray")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(connection, "_ANSWER_S", 0.1)  # at its second address nothing answers
    with (
        listener(b"\0\0\0\4\0\0\0\0\0") as where,
        pytest.raises(RaykaError, match=rf"no Ray cluster answers at {where} \(Failed to connect") as refused,
    ):
        rayka.connect(where)
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_settings_without_effect_are_named(monkeypatch, capsys):
    started = SimpleNamespace(stop=lambda: None, loop=SimpleNamespace(is_in_fork=False))
    monkeypatch.setattr(connection, "start", lambda *given, **more: started)
    with rayka.start(configs={"num.partition": "3", "num.partitions": "3"}):
        pass
    assert capsys.readouterr().err == (
        "rayka: num.partition is not a broker setting and has no effect; did you mean num.partitions?\n"
    )


def test_a_port_that_is_taken_is_refused_before_ray_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("rayka.actors.node.node.start_ray", lambda *_: pytest.fail("Ray was started"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        reason = f"cannot listen on {address}: Address already in use; choose another address with `listen`"
        with pytest.raises(RaykaError, match=reason) as refused:
            rayka.start(str(tmp_path), listen=address)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_an_address_where_nothing_listens_is_refused_before_ray_waits_for_it(nowhere, monkeypatch):
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray waits for a minute"))
    for where in (f"127.0.0.1:{nowhere}", "127.0.0.1:1", f"127.0.0.1:{nowhere + 65536}", None):
        with pytest.raises(RaykaError, match="no Ray cluster answers at"):
            rayka.connect(where)


def test_an_address_that_ray_can_t_read_is_named(nowhere, monkeypatch):
    def fail(address, **settings):
        raise ValueError("Unable to parse port number")

    monkeypatch.setattr(ray, "init", fail)
    for where in ("localhost:²", "localhost:http", "localhost:"):
        with pytest.raises(RaykaError, match=f"'{where}' is not an address of Ray: Unable to parse") as refused:
            rayka.connect(where)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_the_port_of_kafka_clients_is_told_from_that_of_ray(nowhere, monkeypatch, answer):
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray waits for a minute"))
    with (
        listener(answer) as where,
        pytest.raises(
            RaykaError, match=rf"what listens at {where} is not a Ray cluster; without an address,"
        ) as refused,
    ):
        rayka.connect(where)
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_ray_that_comes_back_is_waited_for(nowhere, monkeypatch):
    monkeypatch.setattr(connection, "_PATIENCE_S", 30.0)
    monkeypatch.setattr(connection, "_ANSWER_S", 0.1)  # it is as slow as a Ray that has just started
    with socket.socket() as server:
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: server.listen())
        monkeypatch.setattr(connection, "time", clock)
        server.bind(("", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        connection.require_ray()


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A file that is there once Java was started."""
    started = tmp_path / "started"
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ntouch {started}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return started


def test_a_spark_session_looks_for_ray_before_it_starts_java(nowhere, started):
    with pytest.raises(RaykaError, match=f":{nowhere} ") as refused:
        rayka.spark.session()
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert not started.exists()


def test_a_spark_session_looks_for_the_broker_before_it_starts_java(started, monkeypatch):
    def no_actor(name, namespace):
        raise ValueError(name)

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", no_actor)
    with pytest.raises(RaykaError, match="in namespace 'elsewhere'"):
        rayka.spark.session(namespace="elsewhere")
    assert not started.exists()


@pytest.mark.parametrize(("fenced", "expected"), [({1}, "b:2"), ({1, 2}, "a:1,b:2"), (set(), "a:1,b:2")])
def test_clients_get_the_brokers_that_serve_or_all_while_none_does(fenced, expected):
    brokers = {
        port: SimpleNamespace(broker_id=port, host=host, port=port, fenced=port in fenced) for host, port in HOSTS
    }
    view = SimpleNamespace(image=SimpleNamespace(brokers=brokers))
    assert ClusterConnection(view, None, None, False, None).bootstrap_servers == expected


def test_a_client_looks_again_for_a_controller_that_ray_did_not_find_at_first(monkeypatch):
    answers = [ValueError("Failed to look up actor"), ValueError("Failed to look up actor"), "controller"]

    def get_actor(name, namespace):
        answer = answers.pop(0)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"))
    monkeypatch.setattr(connection, "_connection", lambda controller, *_: controller)
    assert connection.connect().upper() == "CONTROLLER", "the handle's own methods"


def test_a_client_is_told_that_no_broker_runs_in_its_ray(monkeypatch):
    def get_actor(name, namespace):
        raise ValueError("Failed to look up actor")

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"))
    monkeypatch.setattr(ray.util, "list_named_actors", lambda **_: [{"namespace": "other", "name": "rayka-controller"}])
    monkeypatch.setattr(connection, "_PATIENCE_S", 0.3)
    with pytest.raises(RaykaError, match="no rayka broker runs in namespace 'rayka'") as refused:
        rayka.connect()
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert refused.value.message.endswith("GCS is at 10.0.0.1:6379 and whose named actors are: other/rayka-controller")
