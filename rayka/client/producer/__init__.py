"""The producer: accumulator, sender, partitioners."""
