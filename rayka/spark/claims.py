"""Which tasks of a transaction have begun to write; a module of its own, so that the actor needs nothing of Spark."""

from __future__ import annotations

from rayka.client.settings import OpenTransaction


class WriteClaims:
    """Lets each task write once in the present transaction. An actor beside the driver."""

    def __init__(self) -> None:
        self._transaction: OpenTransaction | None = None
        self._claimed: set[int] = set()

    def begin(self, transaction: OpenTransaction) -> None:
        """Another transaction has begun."""
        self._transaction, self._claimed = transaction, set()

    def claim(self, transaction: OpenTransaction, task: int) -> bool:
        """Whether a task may write, which it may once."""
        if transaction != self._transaction or task in self._claimed:
            return False
        self._claimed.add(task)
        return True
