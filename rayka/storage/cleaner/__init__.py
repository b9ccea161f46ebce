"""The log cleaner: keeps the last record of each key of a compacted log (`cleanup.policy=compact`)."""
