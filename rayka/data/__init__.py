"""Ray Data reads and writes topics.

    import rayka.data

    clicks = rayka.data.read_topic("clicks")
    rayka.data.write_topic(clicks.map_batches(score), "scores", key="user")

`read_topic` is lazy, and located at the partitions' nodes; a `map_batches` on it works on the mapped memory of the
partition actors' tables. `iter_topic` goes through a topic that has no end, and remembers what is done. It needs the
extra `rayka[data]`.
"""

from __future__ import annotations

from rayka.lazy import needs_extra

with needs_extra(__name__, "data"):
    from rayka.data.endless import iter_topic
    from rayka.data.read import read_topic
    from rayka.data.write import write_topic
from rayka.ranges.plan import Timestamp

__all__ = ["Timestamp", "iter_topic", "read_topic", "write_topic"]
