"""Ray Data reads and writes topics."""
