"""The consumer of assigned partitions, its fetcher, and readers of ranges."""
