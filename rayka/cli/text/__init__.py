"""How the command reads and prints files, groups and records."""
