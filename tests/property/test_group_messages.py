"""Every request and response of the group coordinator crosses a process boundary unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.actors.channel.messages import MessageCodec
from rayka.coordinator.groups.spec import COMMANDS, GROUPS, QUERIES
from rayka.coordinator.request import response_type
from tests.support.scale import examples

CODEC = MessageCodec(GROUPS.message_types())
TYPES = list(GROUPS.message_types())


@pytest.fixture(scope="module", autouse=True)
def integers_of_64_bits() -> None:
    st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize("message_type", TYPES, ids=lambda one: one.__name__)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_messages_come_back_as_they_were_sent(message_type: type[Any], data: st.DataObject) -> None:
    message = data.draw(st.from_type(message_type))
    decoded = CODEC.decode(CODEC.encode(message))
    assert (type(decoded), decoded) == (message_type, message)


def test_every_request_names_its_response() -> None:
    for request in (*COMMANDS, *QUERIES):
        assert request.__name__.endswith(response_type(request).__name__.replace("Response", "Request"))
