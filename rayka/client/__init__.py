"""Producers, consumers, readers, streams and the admin client on actor handles; a program imports all of them here.

A name is loaded when it is first used, so that `import rayka.client` is quick and brings neither Ray nor an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayka.lazy import lazy_names

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin, AsyncAdmin, ClusterDescription
    from rayka.client.cluster import Cluster
    from rayka.client.consumer.blocking import Consumer
    from rayka.client.consumer.consumer import AsyncConsumer, WakeupError
    from rayka.client.consumer.offsets import OffsetAndTimestamp
    from rayka.client.consumer.reader import AsyncReader, FetchRequest, Reader, RecordSet
    from rayka.client.consumer.records import ConsumerRecord, RecordBatches
    from rayka.client.consumer.sequence import ConsumerRecords
    from rayka.client.group.blocking import GroupConsumer
    from rayka.client.group.consumer import AsyncGroupConsumer
    from rayka.client.group.coordinator import GroupMetadata, OffsetAndMetadata, ReadOffsets
    from rayka.client.group.settings import GroupConsumerConfig, GroupConsumerOptions
    from rayka.client.producer.accumulator import BufferFull
    from rayka.client.producer.blocking import Producer
    from rayka.client.producer.future import BatchMetadata, ProduceFuture, RecordMetadata
    from rayka.client.producer.partitioner import Partitioner, random_partition
    from rayka.client.producer.producer import AsyncProducer
    from rayka.client.settings import ConsumerConfig, ConsumerOptions, ProducerConfig, ProducerOptions
    from rayka.client.share.blocking import ShareConsumer
    from rayka.client.share.commits import ProcessingCounts
    from rayka.client.share.consumer import AsyncShareConsumer, ShareConsumerOptions
    from rayka.client.share.pool import ProcessingPool
    from rayka.client.share.records import ShareRecord
    from rayka.client.streams.streams import AsyncConsumerConnector, AsyncStream, ConsumerConnector, Stream
    from rayka.client.streams.topic_filter import Blacklist, TopicFilter, Whitelist
    from rayka.errors import ErrorCode, RaykaError
    from rayka.metadata.commands import NewPartitions, NewTopic
    from rayka.metadata.records import ConfigResource, ResourceType
    from rayka.murmur2 import murmur2
    from rayka.share.record_state import AcknowledgeType
    from rayka.types import IsolationLevel, OffsetSpec, TimestampType, TopicPartition

_MODULES = {
    "rayka.client.admin.admin": ("Admin", "AsyncAdmin", "ClusterDescription"),
    "rayka.client.cluster": ("Cluster",),
    "rayka.client.consumer.blocking": ("Consumer",),
    "rayka.client.consumer.consumer": ("AsyncConsumer", "WakeupError"),
    "rayka.client.consumer.offsets": ("OffsetAndTimestamp",),
    "rayka.client.consumer.reader": ("AsyncReader", "FetchRequest", "Reader", "RecordSet"),
    "rayka.client.consumer.records": ("ConsumerRecord", "RecordBatches"),
    "rayka.client.consumer.sequence": ("ConsumerRecords",),
    "rayka.client.group.blocking": ("GroupConsumer",),
    "rayka.client.group.consumer": ("AsyncGroupConsumer",),
    "rayka.client.group.coordinator": ("GroupMetadata", "OffsetAndMetadata", "ReadOffsets"),
    "rayka.client.group.settings": ("GroupConsumerConfig", "GroupConsumerOptions"),
    "rayka.client.producer.future": ("BatchMetadata", "ProduceFuture", "RecordMetadata"),
    "rayka.client.producer.partitioner": ("Partitioner", "random_partition"),
    "rayka.client.producer.accumulator": ("BufferFull",),
    "rayka.client.producer.blocking": ("Producer",),
    "rayka.client.producer.producer": ("AsyncProducer",),
    "rayka.client.settings": ("ConsumerConfig", "ConsumerOptions", "ProducerConfig", "ProducerOptions"),
    "rayka.client.share.blocking": ("ShareConsumer",),
    "rayka.client.share.consumer": ("AsyncShareConsumer", "ShareConsumerOptions"),
    "rayka.client.share.commits": ("ProcessingCounts",),
    "rayka.client.share.pool": ("ProcessingPool",),
    "rayka.client.share.records": ("ShareRecord",),
    "rayka.client.streams.streams": ("AsyncConsumerConnector", "AsyncStream", "ConsumerConnector", "Stream"),
    "rayka.client.streams.topic_filter": ("Blacklist", "TopicFilter", "Whitelist"),
    "rayka.errors": ("ErrorCode", "RaykaError"),
    "rayka.metadata.commands": ("NewPartitions", "NewTopic"),
    "rayka.metadata.records": ("ConfigResource", "ResourceType"),
    "rayka.murmur2": ("murmur2",),
    "rayka.share.record_state": ("AcknowledgeType",),
    "rayka.types": ("IsolationLevel", "OffsetSpec", "TimestampType", "TopicPartition"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AcknowledgeType",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncConsumerConnector",
    "AsyncGroupConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncShareConsumer",
    "AsyncStream",
    "BatchMetadata",
    "Blacklist",
    "BufferFull",
    "Cluster",
    "ClusterDescription",
    "ConfigResource",
    "Consumer",
    "ConsumerConfig",
    "ConsumerConnector",
    "ConsumerOptions",
    "ConsumerRecord",
    "ConsumerRecords",
    "ErrorCode",
    "FetchRequest",
    "GroupConsumer",
    "GroupConsumerConfig",
    "GroupConsumerOptions",
    "GroupMetadata",
    "IsolationLevel",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "Partitioner",
    "ProcessingCounts",
    "ProcessingPool",
    "ProduceFuture",
    "Producer",
    "ProducerConfig",
    "ProducerOptions",
    "RaykaError",
    "ReadOffsets",
    "Reader",
    "RecordBatches",
    "RecordMetadata",
    "RecordSet",
    "ResourceType",
    "ShareConsumer",
    "ShareConsumerOptions",
    "ShareRecord",
    "Stream",
    "TimestampType",
    "TopicFilter",
    "TopicPartition",
    "WakeupError",
    "Whitelist",
    "murmur2",
    "random_partition",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
