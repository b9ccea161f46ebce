"""The shell of tiered storage: stores, the metadata topic, and the work that a partition actor does with them."""
