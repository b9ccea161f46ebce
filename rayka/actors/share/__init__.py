"""The shell of share-partitions, in the actors that lead their partitions."""
