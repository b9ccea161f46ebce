"""Clients stay in the process that created them."""

from __future__ import annotations

import pickle
from typing import NoReturn


class Unpicklable:
    """Refuses to be pickled, as an argument of a Ray task or a variable that it uses is.

    The error is no TypeError: Ray answers that with a long report about each attribute of the object.
    """

    def __reduce__(self) -> NoReturn:
        raise pickle.PicklingError(
            f"{type(self).__name__} can't be pickled: call rayka.connect() in the Ray task or actor that needs it"
        )
