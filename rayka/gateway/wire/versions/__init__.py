"""Message versions that kio lacks: those that Kafka 4 dropped, and ApiVersions 5.

Field annotations are examined when a reader is made, so these modules do without postponed evaluation.
"""
