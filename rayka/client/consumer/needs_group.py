"""What a consumer without a group says to a program that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_OF_GROUPS = frozenset(
    {
        "subscribe",
        "subscription",
        "unsubscribe",
        "commit",
        "commit_async",
        "committed",
        "group_metadata",
        "read_offsets",
    }
)
"""Methods of a consumer in a group."""


class NeedsGroup:
    """Names the call to make where a program asks a consumer without a group for what only a group has."""

    if not TYPE_CHECKING:  # for type checkers there would be every name

        def __getattr__(self, name: str) -> Any:
            if name in _OF_GROUPS:
                reason = f'{name} needs a group: create the consumer with cluster.consumer("name-of-the-group")'
                raise AttributeError(f"{reason}, or use assign and seek", name=name, obj=self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
