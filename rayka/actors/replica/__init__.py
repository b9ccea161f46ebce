"""The actor that holds partitions: it serves them, flushes, checkpoints and publishes them."""
