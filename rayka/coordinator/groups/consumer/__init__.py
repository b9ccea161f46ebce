"""Consumer groups (KIP-848): heartbeats, target assignments, reconciliation."""
