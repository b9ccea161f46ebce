"""Clients that are configured for SASL, which no listener has."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import make, run
from tests.unit.gateway.wire_client import WireClient, versions


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
def test_sasl_is_refused_with_an_answer(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        request = make(key, version, f"{key.title}Request", mechanism="PLAIN", auth_bytes=b"\0user\0password")
        assert (await client.call(key, version, request)).error_code == ErrorCode.ILLEGAL_SASL_STATE

    run(tmp_path, check)
