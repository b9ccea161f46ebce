"""The group coordinator (pure): groups of both protocols and their committed offsets."""
