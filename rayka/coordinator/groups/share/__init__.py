"""Share groups in the group coordinator: membership, assignment, and which partitions are initialized (KIP-932)."""
