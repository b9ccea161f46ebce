"""Values decoded in columns before Spark sees them: JSON, Avro, Protobuf and Arrow, by a given schema."""
