"""The log and its files (pure): formats, segments, producers' state, log directories, Arrow columns."""
