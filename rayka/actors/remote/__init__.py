"""Tiered storage around its core: stores, the metadata topic, and the work that a partition actor does with them."""
