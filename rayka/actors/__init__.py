"""The Ray shells around the cores, and the channel between them."""
