"""The data source `rayka` of PySpark 4, over the Kafka protocol: `spark.read.format("rayka")`.

The package `pyspark_rayka` makes it known to Spark. A worker process of Spark fetches record batches from the
partitions' leaders and decodes them to Arrow itself, by the same compiled decoder that the partition actors use; it
needs no Ray, so it may be on any machine that reaches the port. Connecting a worker to Ray instead would take longer
than loading the decoder.
"""
