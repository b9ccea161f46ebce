"""Items as bytes: pickled, as Ray pickles what a task gets or returns.

Who may write to a queue's topic can run code in the programs that get from it, as with any pickle; so restrict
who may, by ACLs, where programs share a cluster that do not trust each other.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from ray import cloudpickle

from rayka.client.share.records import RecordAcknowledgement, rejection_headers
from rayka.queue.leases import RELEASE, Item, ItemRun
from rayka.queue.settings import require_item_fits
from rayka.queue.stored_value import UnreadableItem, Value
from rayka.share.record_state import AcknowledgeType
from rayka.storage.format.pieces import MaybePieces, Pieces
from rayka.storage.journal.layout import MOST_FRAME_BYTES

if TYPE_CHECKING:
    from rayka.queue.reader import QueueReader

_PLAIN = frozenset({bytes, str, int, float, bool, type(None)})
_PROTOCOL = 5
_cloudpickle: Callable[[Any, int], bytes] = cloudpickle.dumps


def dumps(item: Any) -> bytes:
    """The bytes of an item. Raises what pickling raises, a TypeError most often."""
    if type(item) in _PLAIN:
        return pickle.dumps(item, _PROTOCOL)
    return _cloudpickle(item, _PROTOCOL)


def loads(value: Value) -> Any:
    """What was pickled. Raises what unpickling raises, and `UnreadableItem`."""
    return pickle.loads(value) if type(value) is bytes else value.unpickle()  # type: ignore[union-attr]


def pickled(item: Any) -> MaybePieces:
    """The bytes of an item to send. Raises what pickling raises, and MESSAGE_TOO_LARGE.

    A large `bytes` object in it is not copied.
    """
    kind = type(item)
    if kind is bytes or kind not in _PLAIN:
        if kind is bytes and len(item) <= MOST_FRAME_BYTES:
            return pickle.dumps(item, _PROTOCOL)
        pieces = Pieces()
        (pickle.Pickler if kind is bytes else cloudpickle.Pickler)(pieces, _PROTOCOL).dump(item)
        require_item_fits(len(pieces))
        return pieces if len(pieces) > MOST_FRAME_BYTES else bytes(pieces)
    data = pickle.dumps(item, _PROTOCOL)
    require_item_fits(len(data))
    return data


def unpickled(reader: QueueReader, holder: Hashable, lease: Callable[[list[Item]], Item]) -> Any:
    """What was put, of the item that `lease` takes, and gives to its list at once: Ctrl-C may come before it returns.

    Rejects an item that can't be unpickled, and raises what unpickling raises.
    """
    taken: list[Item] = []
    item: Item | None = None
    try:
        item = lease(taken)
        return loads(item.value)
    except BaseException as error:
        if item is None:
            _give_back(reader, holder, taken)
        else:
            _give_up(reader, holder, item, error)
        raise


def in_memory(reader: QueueReader, holder: Hashable, lease: Callable[[list[Item]], Item]) -> Item:
    """As `unpickled`, the item with its bytes. Gives back one that can't be read, and raises `UnreadableItem`."""
    taken: list[Item] = []
    try:
        item = lease(taken)
        return item if isinstance(item.value, bytes) else item._replace(value=item.value.read())
    except BaseException:
        _give_back(reader, holder, taken)
        raise


def all_unpickled(reader: QueueReader, holder: Hashable, lease: Callable[[list[ItemRun]], object]) -> list[Any]:
    """As `unpickled`, for several. If one can't be unpickled, the others go back to the queue."""
    taken: list[ItemRun] = []
    values: list[Any] = []
    is_leased = False
    try:
        lease(taken)
        is_leased = True
        for run in taken:
            for value in run.values:
                values.append(loads(value))
        return values
    except BaseException as error:
        items = [item for run in taken for item in run.items()]
        if is_leased and len(values) < len(items):
            _give_up(reader, holder, items.pop(len(values)), error)
        _give_back(reader, holder, items)
        raise


def _give_back(reader: QueueReader, holder: Hashable, items: Iterable[Item]) -> None:
    for item in items:
        reader.settle_item(holder, item, RELEASE)


def _give_up(reader: QueueReader, holder: Hashable, item: Item, error: BaseException) -> None:
    """Reject an item that can't be unpickled. Give it back if an interrupt or the disk was the reason."""
    is_malformed = isinstance(error, Exception) and not isinstance(error, UnreadableItem)
    rejection = RecordAcknowledgement(AcknowledgeType.REJECT, headers=rejection_headers(error))
    reader.settle_item(holder, item, rejection if is_malformed else RELEASE)
