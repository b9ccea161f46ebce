"""What a member tells its group: its identity and its subscription."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from rayka.coordinator.topics import compile_pattern
from rayka.errors import ErrorCode, RaykaError


class Subscription(NamedTuple):
    """Topics by name, or all whose name matches a pattern in RE2's syntax."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __bool__(self) -> bool:
        return bool(self.topics) or self.pattern is not None


class Identity(NamedTuple):
    """What a member sends about itself. `rebalance_timeout_ms`: how long it may take to give partitions up."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    server_assignor: str | None = None
    rebalance_timeout_ms: int = 300_000


def subscription_of(
    topics: Iterable[str] | re.Pattern[str] | None, pattern: str | re.Pattern[str] | None
) -> Subscription:
    """The one of them that is given. Raises INVALID_TOPIC_EXCEPTION, INVALID_REGULAR_EXPRESSION, INVALID_REQUEST."""
    if isinstance(topics, re.Pattern):
        topics, pattern = None, topics
    if (topics is None) == (pattern is None):
        raise RaykaError(ErrorCode.INVALID_REQUEST, "give either topics or a pattern")
    if pattern is not None:
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        if not isinstance(text, str) or not text:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"pattern must be a non-empty str, not {pattern!r}")
        compile_pattern(text)
        return Subscription(pattern=text)
    names = [topics] if isinstance(topics, str) else list(topics or ())
    if isinstance(topics, str) or not names or not all(isinstance(name, str) and name for name in names):
        raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topics must be a list of names, not {topics!r}")
    return Subscription(tuple(sorted(set(names))))
