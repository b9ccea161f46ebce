"""Topics, settings and groups from Python."""
