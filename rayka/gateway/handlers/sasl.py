"""SaslHandshake 0-1 and SaslAuthenticate 0-2, which no listener expects: SASL is not served.

A client that is configured for it learns so, as from a listener of Kafka without SASL. It takes a connection that is
closed for a fault of the network, and connects again and again.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

from rayka.errors import ErrorCode
from rayka.gateway.server.request import Call

_REFUSAL: Final = "this listener does not authenticate clients: set security.protocol to PLAINTEXT"


async def handle_handshake(call: Call) -> Any:
    """Refuse the mechanism: there are none."""
    return call.types.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())


async def handle_authenticate(call: Call) -> Any:
    """Refuse the token of a client that did not ask first."""
    return call.types.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message=_REFUSAL,
        auth_bytes=b"",
        session_lifetime=datetime.timedelta(0),
    )
