"""An OSError becomes KAFKA_STORAGE_ERROR in one place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rayka.errors import ErrorCode, RaykaError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Storing(Protocol):
    """What keeps files: it can refuse calls, and it learns of its failures."""

    def check_online(self) -> None:
        """Raises KAFKA_STORAGE_ERROR if there was a failure."""

    def failed(self, error: OSError) -> RaykaError:
        """Note a failure; the error for the caller."""


Store = TypeVar("Store", bound=Storing)


def storage_error(what: str, error: OSError) -> RaykaError:
    """KAFKA_STORAGE_ERROR with the cause in its message."""
    return RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}")


def storing(
    method: Callable[Concatenate[Store, Arguments], Result],
) -> Callable[Concatenate[Store, Arguments], Result]:
    """A method that works on files: refused when offline, its OSErrors translated."""

    @functools.wraps(method)
    def call(self: Store, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        self.check_online()
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise self.failed(error) from error

    return call  # type: ignore[return-value]
