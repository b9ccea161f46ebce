"""Clients stay in the process that created them."""

from __future__ import annotations

import concurrent.futures
import pickle
from typing import NoReturn, TypeVar

T = TypeVar("T")


class Unpicklable:
    """Refuses to be pickled, as an argument of a Ray task or a variable that it uses is.

    The error is no TypeError: Ray answers that with a long report about each attribute of the object.
    """

    def __reduce__(self) -> NoReturn:
        raise pickle.PicklingError(
            f"{type(self).__name__} can't be pickled: call rayka.connect() in the Ray task or actor that needs it"
        )


class UnpicklableFuture(concurrent.futures.Future[T]):
    """The outcome of a call that does not wait, which comes in this process; as `Unpicklable`."""

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle_future("The future of a call")


def refuse_to_pickle_future(name: str) -> NoReturn:
    """See `Unpicklable`."""
    raise pickle.PicklingError(f"{name} can't be pickled: wait for its result, and give that to the Ray task or actor")
