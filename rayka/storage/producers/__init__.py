"""What a log remembers of its producers, for idempotence and transactions, and their snapshots."""
