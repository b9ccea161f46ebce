"""Message streams, the consumer API of Kafka's design papers."""
