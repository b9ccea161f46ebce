"""Which tasks of a transaction have begun to write; a module of its own, so that the actor needs nothing of Spark."""

from __future__ import annotations

from rayka.client.settings import OpenTransaction


class WriteClaims:
    """An actor beside the driver that lets each task write once in the current transaction."""

    def __init__(self) -> None:
        self._transaction: OpenTransaction | None = None
        self._claimed: set[int] = set()

    def begin(self, transaction: OpenTransaction) -> None:
        """A new transaction has begun: every task may write again."""
        self._transaction, self._claimed = transaction, set()

    def claim(self, transaction: OpenTransaction, task: int) -> bool:
        """Claim a task's one write. Returns False if it has been claimed before."""
        if transaction != self._transaction or task in self._claimed:
            return False
        self._claimed.add(task)
        return True
