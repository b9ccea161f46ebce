"""Tiered storage (KIP-405): what is known of segments in a remote store, what to copy and delete, how to read them."""
