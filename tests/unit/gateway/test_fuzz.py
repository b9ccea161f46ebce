"""Random bytes: nothing is raised out of the protocol, nothing hangs, and the neighbour is served."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayka.gateway.api import APIS
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.support.scale import examples
from tests.unit.gateway.scripted_broker import connect, feed, new_context, settle
from tests.unit.gateway.test_codec import CASES, sample
from tests.unit.gateway.wire_client import encode, request_frame, versions

ALL = versions(*[ApiKey(key) for key in APIS])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames with a sound header of some API and version, and any body."""
    key, version = draw(st.sampled_from(ALL))
    return request_frame(key, version, draw(st.binary(max_size=120)))


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """Sound requests with some bytes changed."""
    from rayka.gateway.wire.schema import schema

    key, version = draw(st.sampled_from(CASES))
    frame = bytearray(
        request_frame(key, version, encode(sample(schema(key, version).request, draw(st.integers(0, 9)))))
    )
    for _ in range(draw(st.integers(0, 4))):
        frame[draw(st.integers(4, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame)


def exercise(directory: Path, data: bytes, piece: int) -> None:
    """Feed a connection, then ask something over another one."""

    async def main() -> None:
        failures: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, details: failures.append(details))
        broker = LocalBroker(str(directory), {"auto.create.topics.enable": "false"})
        broker.register("127.0.0.1", 9)
        await broker.controller.create_topics([NewTopic("orders")], validate_only=False, timeout_ms=1000)
        context = new_context(broker)
        connection, transport = connect(context)
        feed(connection, data, piece)
        await settle()
        neighbour, neighbour_transport = connect(context)
        feed(neighbour, request_frame(ApiKey.API_VERSIONS, 0, b"", correlation_id=1))
        assert neighbour_transport.correlation_ids() == [1]
        transport.frames()
        connection.abort()
        neighbour.abort()
        await settle()
        assert not failures
        assert context.request_bytes.used == 0
        await broker.controller.delete_topics(list(broker.image.topics), 1000)
        broker.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


SETTINGS = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(data=st.binary(max_size=400), piece=st.integers(1, 400))
def test_random_streams(directory: Path, data: bytes, piece: int) -> None:
    exercise(directory, data, piece)


@SETTINGS
@given(data=st.lists(frames(), max_size=6), piece=st.integers(1, 400))
def test_sound_headers_with_random_bodies(
    directory: Path, caplog: pytest.LogCaptureFixture, data: list[bytes], piece: int
) -> None:
    caplog.clear()
    exercise(directory, b"".join(data), piece)
    assert "Traceback" not in caplog.text


@SETTINGS
@given(data=st.lists(damaged_frames(), max_size=6), piece=st.integers(1, 400))
def test_sound_requests_with_damage(
    directory: Path, caplog: pytest.LogCaptureFixture, data: list[bytes], piece: int
) -> None:
    caplog.clear()
    exercise(directory, b"".join(data), piece)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(("key", "version"), ALL)
def test_every_cut_of_a_minimal_frame(directory: Path, key: ApiKey, version: int) -> None:
    frame = request_frame(key, version, bytes(40))
    exercise(directory, frame[: len(frame) // 2], 3)
    exercise(directory, struct.pack(">i", len(frame) - 4) + frame[4:], 5)
