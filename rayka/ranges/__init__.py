"""Bounded reads of topics: planned offset ranges, checkpoints and micro-batches, for Spark and Ray Data.

Pure: offsets, files, clock and ids come in as arguments.
"""
