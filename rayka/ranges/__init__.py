"""Bounded reads of topics: planned offset ranges, checkpoints and micro-batches, for Spark and Ray Data."""
