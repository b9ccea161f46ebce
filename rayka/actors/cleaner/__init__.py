"""The shell of the log cleaner: the process that compacts, and the partition actor's part in it."""
