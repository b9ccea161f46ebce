"""Spark's Python workers: the daemon that they are forked from, and how they read splits."""
