"""What passes between a member of a group and the shell around it."""

from __future__ import annotations

import enum
import uuid
from typing import NamedTuple

from rayka.types import TopicPartition


class Kind(enum.Enum):
    """What is done with partitions: given up in good order, taken up, or gone without asking."""

    REVOKE = enum.auto()
    ASSIGN = enum.auto()
    LOSE = enum.auto()


class TopicIdPartition(NamedTuple):
    """A partition of the member. A topic that is made again under its old name has another id."""

    topic_id: uuid.UUID
    topic_partition: TopicPartition


class Action(NamedTuple):
    """The next thing for the shell to do, with its partitions in order."""

    kind: Kind
    partitions: tuple[TopicIdPartition, ...]


class Identity(NamedTuple):
    """What a member tells of itself. `rebalance_timeout_ms`: how long it may take to give partitions up."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    server_assignor: str | None = None
    rebalance_timeout_ms: int = 300_000
