"""rayka and Apache Kafka in turns, on this machine, with the same clients; `python -m benchmarks --help`."""
