"""Members of consumer groups, each in a process of its own that a test can stop, pause and kill."""
