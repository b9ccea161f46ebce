"""A small blocking client of the Kafka protocol, without Ray: for commands and the Spark source, on rayka or Kafka."""
