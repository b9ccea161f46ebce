"""Group membership, committed offsets, and the description of groups."""
