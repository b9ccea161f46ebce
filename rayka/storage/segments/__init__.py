"""The files of a log: segments with their indexes, and how they are read and searched."""
