"""A small blocking client of the Kafka protocol, for commands that answer quickly on any broker, rayka or Kafka."""
