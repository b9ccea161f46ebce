"""Fetch, and fetch sessions (KIP-227)."""
