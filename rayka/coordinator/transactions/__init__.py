"""The transaction coordinator (pure): transactional ids, producers and transactions (KIP-98, KIP-890)."""
