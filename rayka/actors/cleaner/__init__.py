"""The log cleaner around its core: a process that compacts, and what a partition actor does with its results."""
