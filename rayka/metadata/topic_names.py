"""Which names a topic may have. Source: Kafka's documentation of topics, and KIP-4."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rayka.errors import ErrorCode, RaykaError

MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
CLUSTER_METADATA_TOPIC = "__cluster_metadata"


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION if no topic may have this name."""
    reason = _reason(name)
    if reason:
        raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def _reason(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


class TopicCollisions:
    """Finds names that differ only in '.' and '_', which would share the name of a metric."""

    def __init__(self, names: Iterable[str]) -> None:
        self._taken: dict[str, str] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """The name is taken from now on."""
        if "." in name or "_" in name:
            self._taken.setdefault(name.replace(".", "_"), name)

    def check(self, name: str) -> None:
        """Raises INVALID_TOPIC_EXCEPTION if the name collides with one that is taken."""
        other = self._taken.get(name.replace(".", "_"))
        if other is not None and ("." in name or "_" in name):
            raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")
