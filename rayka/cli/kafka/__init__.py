"""Reading records and offsets for commands, over the Kafka protocol."""
