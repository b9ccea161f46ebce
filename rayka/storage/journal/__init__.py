"""Put journals: files through which programs hand small records to the leader on their node."""
