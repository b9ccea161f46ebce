"""The Kafka wire protocol: from sockets to the ports that actors implement."""
