"""Chooses the topics that streams read by a filter."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from rayka.errors import ErrorCode, RaykaError


class TopicFilter(ABC):
    """A regular expression (Python's) for whole names; as in Kafka 0.8 a comma stands for "or"."""

    def __init__(self, pattern: str) -> None:
        if not isinstance(pattern, str) or not pattern.strip():
            reason = f"a filter must be a non-empty regular expression, not {pattern!r}"
            raise RaykaError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason)
        try:
            self._pattern = re.compile(pattern.strip().replace(",", "|").replace(" ", ""))
        except re.error as error:
            reason = f"the filter {pattern!r} is not a valid regular expression: {error}"
            raise RaykaError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason) from None

    @abstractmethod
    def allows(self, topic: str) -> bool:
        """Whether the filter lets the topic through."""

    def allowed(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Those that the filter lets through, in order."""
        return tuple(sorted(filter(self.allows, topics)))

    def _matches(self, topic: str) -> bool:
        return self._pattern.fullmatch(topic) is not None


class Whitelist(TopicFilter):
    """The topics that match."""

    def allows(self, topic: str) -> bool:
        """Whether the name matches."""
        return self._matches(topic)


class Blacklist(TopicFilter):
    """The topics that do not match."""

    def allows(self, topic: str) -> bool:
        """Whether the name does not match."""
        return not self._matches(topic)
