"""Messages between processes come back as they were sent, and anything else is refused with INVALID_REQUEST."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.actors.channel.messages import MessageCodec
from rayka.errors import ErrorCode, RaykaError

TEXT = st.text(st.characters(codec="utf-8"))


class Row(NamedTuple):
    topic: str
    partition: int
    topic_id: uuid.UUID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class Commit:
    group_id: str
    rows: tuple[Row, ...] | None
    metadata: bytes = b""
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Ping:
    number: int


@dataclass
class Mutable:
    number: int


CODEC = MessageCodec((Commit, Ping))
ROWS = st.builds(Row, TEXT, st.integers(-(2**31), 2**31 - 1), st.uuids())
COMMITS = st.builds(
    Commit, TEXT, st.none() | st.lists(ROWS, max_size=5).map(tuple), st.binary(), st.sampled_from(ErrorCode)
)


def refusal(data: bytes) -> RaykaError:
    with pytest.raises(RaykaError) as error:
        CODEC.decode(data)
    return error.value


@given(COMMITS)
def test_a_message_comes_back_as_it_was_sent(commit: Commit) -> None:
    decoded = CODEC.decode(memoryview(CODEC.encode(commit)))
    assert decoded == commit
    assert type(decoded.error) is ErrorCode


def test_an_error_comes_back_with_its_code_and_message() -> None:
    decoded = CODEC.decode(CODEC.encode(RaykaError(ErrorCode.NOT_COORDINATOR, "moved")))
    assert (type(decoded), decoded.code, decoded.message) == (RaykaError, ErrorCode.NOT_COORDINATOR, "moved")


@given(COMMITS, st.data())
def test_damaged_bytes_are_refused_or_give_a_message_of_the_type(commit: Commit, data: st.DataObject) -> None:
    encoded = CODEC.encode(commit)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert refusal(encoded[:cut]).code is ErrorCode.INVALID_REQUEST
    flipped = bytearray(encoded)
    flipped[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decoded = CODEC.decode(bytes(flipped))
    except RaykaError as error:
        decoded = error
    assert isinstance(decoded, Commit) or decoded.code is ErrorCode.INVALID_REQUEST


def test_pickled_objects_are_refused(tmp_path: Any) -> None:
    class Exploit:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "created"), "w")

    assert refusal(pickle.dumps(Exploit())).code is ErrorCode.INVALID_REQUEST
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    "other",
    [
        MessageCodec((Row,)).encode(Row("t", 1)),
        b"\x04Ping\x81\xa6number\xa1x",
        b"\x04Ping\x80",
        b"\x04Ping" + b"\x91" * 100_000,
        b"\x04Ping\x81\xa6number\x01\x00",
    ],
)
def test_unknown_types_and_wrong_shapes_are_refused(other: bytes) -> None:
    assert refusal(other).code is ErrorCode.INVALID_REQUEST


def test_only_registered_types_are_sent() -> None:
    for message in (Row("t", 1), "text", Commit("\ud800", None)):
        with pytest.raises(RaykaError) as error:
            CODEC.encode(message)
        assert error.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("types", [(Ping, Ping), (Mutable,), (str,), (tuple,)])
def test_a_codec_takes_frozen_types_with_different_names(types: tuple[type, ...]) -> None:
    with pytest.raises(ValueError, match=r"name|frozen"):
        MessageCodec(types)
