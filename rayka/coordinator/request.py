"""What every request to a coordinator has: the type of its response, and the key that identifies its coordinator."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from rayka.errors import ErrorCode

R = TypeVar("R")


class Request(Generic[R]):
    """A request whose response is an `R`. Requests are frozen dataclasses, which travel between processes."""

    __slots__ = ()

    @property
    def coordinator_key(self) -> str:
        """What chooses the partition of the coordinator's topic; "" if the request is for every coordinator."""
        return ""


class GroupRequest(Request[R]):
    """A request about one group; its coordinator is the group's."""

    __slots__ = ()

    group_id: str

    @property
    def coordinator_key(self) -> str:
        """The id of the group."""
        return self.group_id


class GroupsRequest(Request[R]):
    """A request about groups that have one coordinator; the first names it."""

    __slots__ = ()

    group_ids: tuple[str, ...]

    @property
    def coordinator_key(self) -> str:
        """The id of the first group."""
        return self.group_ids[0] if self.group_ids else ""


class TransactionalRequest(Request[R], ABC):
    """A request whose records belong to a producer's transaction, which the shell verifies beforehand (KIP-890)."""

    __slots__ = ()

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_support: int

    @abstractmethod
    def refused(self, error: ErrorCode) -> R:
        """The response if the transaction is not open."""


def response_type(request_type: type[Request[Any]]) -> type[Any]:
    """The response of a request type, from its declaration as `Request[Response]`."""
    for base in getattr(request_type, "__orig_bases__", ()):
        for argument in typing.get_args(base):
            if isinstance(argument, type):
                return argument
    raise TypeError(f"{request_type.__name__} does not declare its response")
