"""rayka: a Kafka-compatible broker built of Ray actors."""

__version__ = "0.1.0"
