"""A log directory: its lock, its checkpoints, its meta.properties and its partitions."""
