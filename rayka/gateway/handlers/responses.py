"""Small pieces that many responses share."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

from rayka.errors import ErrorCode
from rayka.gateway.server.request import Call
from rayka.gateway.wire.codec import MILLISECOND

NO_THROTTLE: Final = datetime.timedelta(0)
# What a client gets that did not ask which operations it may do.
OPERATIONS_NOT_ASKED: Final = -(2**31)


def milliseconds(duration: datetime.timedelta) -> int:
    """A duration of a request as a number, not below 0."""
    return max(duration // MILLISECOND, 0)


def signed_milliseconds(duration: datetime.timedelta) -> int:
    """A duration of a request as a number; -1 stands for none."""
    return duration // MILLISECOND


def operations(codes: Iterable[int]) -> int:
    """ACL operations as the bits of an int32 (KIP-430)."""
    return sum(1 << code for code in codes)


# Without an authorizer everybody may do everything. READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7,
# DESCRIBE 8, CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
TOPIC_OPERATIONS: Final = operations((3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = operations((5, 7, 8, 9, 10, 11, 12))
GROUP_OPERATIONS: Final = operations((3, 6, 8, 10, 11))


def client_host(call: Call) -> str:
    """The client's address as Kafka shows it of members."""
    return f"/{call.client_host}"


def message_of(error: ErrorCode, message: str | None) -> str | None:
    """An error message for a response: null where there is no error."""
    return None if error == ErrorCode.NONE else message


def known_storage_error(error: int, version: int, first_with_storage_error: int) -> int:
    """The error in this version: before KAFKA_STORAGE_ERROR a client takes it for one that does not pass (KIP-112)."""
    is_unknown = error == ErrorCode.KAFKA_STORAGE_ERROR and version < first_with_storage_error
    return int(ErrorCode.NOT_LEADER_OR_FOLLOWER) if is_unknown else error
