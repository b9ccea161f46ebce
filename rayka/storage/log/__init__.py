"""One partition's log: append, read, recovery, retention, flush."""
