"""Items as bytes: pickled, as Ray pickles what a task gets or returns.

Whoever may write to a queue's topic can have code run in the programs that get from it, as with any pickle; so restrict
who may, by ACLs, where programs share a cluster that do not trust each other.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from ray import cloudpickle

_PLAIN = frozenset({bytes, str, int, float, bool, type(None)})
_PROTOCOL = 5
_cloudpickle: Callable[[Any, int], bytes] = cloudpickle.dumps


def dumps(item: Any) -> bytes:
    """The bytes of an item. Raises what pickling raises, a TypeError most often."""
    if type(item) in _PLAIN:
        return pickle.dumps(item, _PROTOCOL)
    return _cloudpickle(item, _PROTOCOL)


loads = pickle.loads
