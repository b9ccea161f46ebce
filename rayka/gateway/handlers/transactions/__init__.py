"""Transactions: producer ids, the partitions and offsets of a transaction, its end, and what tools ask."""
