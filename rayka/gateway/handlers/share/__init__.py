"""ShareFetch and ShareAcknowledge, and share sessions (KIP-932)."""
