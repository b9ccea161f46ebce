"""A Kafka client and Spark on the same topics: a consumer group writes back what Spark read.

confluent-kafka sends orders over the Kafka protocol. Spark sums them up by customer and writes the sums to a topic. Two
members of a consumer group, again Kafka clients, share its partitions and write an invoice for each sum. Spark compares
the invoices with the orders. No client needs to know how the others are connected.
"""

from __future__ import annotations

import json
import tempfile
import threading

from confluent_kafka import Consumer, Producer
from pyspark.sql import functions as F  # noqa: N812

import rayka
import rayka.spark

CUSTOMERS, ORDERS = 300, 30_000


def place_orders(bootstrap: str) -> None:
    """Orders with the customer as their key."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "enable.idempotence": True})
    for number in range(ORDERS):
        order = json.dumps({"customer": f"customer-{number % CUSTOMERS}", "cents": 100 + number % 77})
        producer.produce("orders", order, key=f"customer-{number % CUSTOMERS}")
    assert producer.flush(120) == 0


def write_invoices(bootstrap: str, written: threading.Semaphore, done: threading.Event) -> None:
    """One member of the group: an invoice for each sum, acknowledged before its offset is committed."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    settings = {"group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe(["sums"])
    while not done.is_set():
        sums = consumer.consume(100, timeout=0.2)
        for each in sums:
            producer.produce("invoices", each.value(), key=each.key())
        assert producer.flush(120) == 0
        if sums:
            consumer.commit(asynchronous=False)
            written.release(len(sums))
    consumer.close()


with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
    for topic in ("orders", "sums", "invoices"):
        cluster.admin().create_topic(topic, partitions=4)
    bootstrap = cluster.bootstrap_servers
    place_orders(bootstrap)

    written, done = threading.Semaphore(0), threading.Event()
    members = [threading.Thread(target=write_invoices, args=(bootstrap, written, done)) for _ in range(2)]
    for member in members:
        member.start()

    spark = rayka.spark.session(configs={"spark.sql.shuffle.partitions": "2"})
    values = rayka.spark.json_values("customer string, cents long")
    orders = rayka.spark.read_topic(spark, "orders", columns=("value",), values=values)
    sums = orders.groupBy("customer").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))
    assert rayka.spark.write_topic(sums, "sums", key="customer") == CUSTOMERS

    for _ in range(CUSTOMERS):
        assert written.acquire(timeout=120), "the consumer group does not go on"
    done.set()
    for member in members:
        member.join()

    invoices = rayka.spark.read_topic(
        spark, "invoices", columns=("value",), values=rayka.spark.json_values("customer string, cents long, orders int")
    )
    total = invoices.agg(F.count("*"), F.sum("orders"), F.sum("cents")).first()
    assert tuple(total) == (CUSTOMERS, ORDERS, orders.agg(F.sum("cents")).first()[0])
    print("{:,} invoices for {:,} orders, {:,} cents".format(*total))
    rayka.spark.stop()
