"""The settings of a consumer in a group: Kafka's names (with underscores, or dots), defaults and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayka.client.settings import ConsumerConfig, ConsumerOptions, invalid, require_at_least, require_int32

CONSUMER_PROTOCOL = "consumer"


class GroupConsumerOptions(ConsumerOptions, total=False):
    """The keyword arguments of a consumer in a group: the settings of `GroupConsumerConfig`."""

    enable_auto_commit: bool
    auto_commit_interval_ms: float
    group_instance_id: str | None
    group_remote_assignor: str | None
    group_protocol: str
    max_poll_interval_ms: float
    default_api_timeout_ms: float
    request_timeout_ms: float
    client_id: str
    client_rack: str | None


@dataclass(frozen=True, slots=True)
class GroupConsumerConfig(ConsumerConfig):
    """The settings of `ConsumerConfig`, and these. Times in ms.

    auto_offset_reset: where to start in partitions for which the group has no committed offset.
    enable_auto_commit, auto_commit_interval_ms: commit the records of earlier polls, in `poll` and this often, before
        partitions are given up, and in `close`.
    group_instance_id: makes a static member, which keeps its partitions if it comes back within the session timeout.
    group_remote_assignor: the coordinator's assignor, "uniform" or "range"; by default the broker chooses.
    max_poll_interval_ms: a program that does not poll for this long leaves the group until it polls again. It is also
        the time that the program has to give up partitions.
    default_api_timeout_ms: how long a commit, or a look-up of committed offsets, is retried.
    request_timeout_ms: how long one request may take.
    client_id, client_rack: the name that the group's description shows, and the program's rack.
    group_protocol: only "consumer", the protocol of KIP-848. Session timeout and heartbeat interval are then settings
        of the group.
    """

    enable_auto_commit: bool = True
    auto_commit_interval_ms: float = 5_000
    group_instance_id: str | None = None
    group_remote_assignor: str | None = None
    group_protocol: str = CONSUMER_PROTOCOL
    max_poll_interval_ms: float = 300_000
    default_api_timeout_ms: float = 60_000
    request_timeout_ms: float = 30_000
    client_id: str = "rayka"
    client_rack: str | None = None

    def __post_init__(self) -> None:
        ConsumerConfig.__post_init__(self)
        require_at_least(self, 0, "auto_commit_interval_ms")
        require_at_least(self, 1, "max_poll_interval_ms", "default_api_timeout_ms", "request_timeout_ms")
        require_int32(self, "max_poll_interval_ms")
        if not isinstance(self.enable_auto_commit, bool):
            raise invalid("enable_auto_commit", self.enable_auto_commit, "it must be True or False")
        if self.group_protocol != CONSUMER_PROTOCOL:
            raise invalid("group_protocol", self.group_protocol, "on actor handles it must be consumer")
        for name in ("group_instance_id", "group_remote_assignor", "client_rack"):
            require_text(name, getattr(self, name))


def require_text(name: str, value: Any) -> None:
    """Raises INVALID_CONFIG for what is neither None nor a text with something in it."""
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise invalid(name, value, "it must be a str that is not empty")
