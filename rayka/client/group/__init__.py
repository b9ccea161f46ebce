"""The consumer as a member of a group (KIP-848)."""
