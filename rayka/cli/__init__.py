"""The `rayka` command."""
