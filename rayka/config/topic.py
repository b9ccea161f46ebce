"""Every config that a topic can have, in Kafka 4.4's names, defaults and bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rayka.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigDef,
    ConfigValue,
    Synonym,
)
from rayka.config.unused import with_reason

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
ARRAY_MAX = INT_MAX - 8
_REPLICA = re.compile(r"\d+:\d+")


def _throttled_replicas(value: ConfigValue) -> str | None:
    items = value if isinstance(value, tuple) else ()
    if items == ("*",) or all(_REPLICA.fullmatch(item) for item in items):
        return None
    return "it must be the literal '*' or a list of replicas as [partitionId]:[brokerId],[partitionId]:[brokerId],..."


def _gzip_level(value: ConfigValue) -> str | None:
    if isinstance(value, int) and (value == -1 or 1 <= value <= 9):
        return None
    return "Value must be between 1 and 9 or equal to -1"


def _retention() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "cleanup.policy", LIST, "delete",
        "What happens to old segments: `delete` removes them by time and size, `compact` keeps the last record of each "
        "key, and every record must have one. Both can be given, separated by a comma. An empty "
        "list keeps everything for ever.",
        valid_values=("compact", "delete"), synonyms=(Synonym("log.cleanup.policy"),),
    )  # fmt: skip
    yield ConfigDef(
        "retention.ms", LONG, "604800000",
        "How long a segment is kept after the timestamp of its last record, under the `delete` policy. "
        "-1 sets no limit of time.",
        lower=-1,
        synonyms=(
            Synonym("log.retention.ms"), Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    )  # fmt: skip
    yield ConfigDef(
        "retention.bytes", LONG, "-1",
        "How many bytes of segments a partition keeps under the `delete` policy, oldest removed first. It counts for "
        "each partition. -1 sets no limit of size.",
        synonyms=(Synonym("log.retention.bytes"),),
    )  # fmt: skip
    yield ConfigDef(
        "file.delete.delay.ms", LONG, "60000",
        "How long a removed segment's files stay on disk, renamed to end in `.deleted`, before they are unlinked.",
        lower=0, synonyms=(Synonym("log.segment.delete.delay.ms"),),
    )  # fmt: skip


def _segments() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "segment.bytes", INT, "1073741824",
        "The size of a segment file. Retention and compaction work on whole segments, so larger ones mean fewer "
        "files and coarser steps.",
        lower=1048576, synonyms=(Synonym("log.segment.bytes"),),
    )  # fmt: skip
    yield ConfigDef(
        "segment.ms", LONG, "604800000",
        "A segment is closed at this age even if it is not full, so that retention can reach its records.",
        lower=1, synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    )  # fmt: skip
    yield ConfigDef(
        "segment.jitter.ms", LONG, "0",
        "At most this much is taken at random from `segment.ms`, so that many partitions don't roll at once.",
        lower=0, synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    )  # fmt: skip
    yield ConfigDef(
        "segment.index.bytes", INT, "10485760",
        "The size to which an offset or time index may grow; the segment rolls when one is full.",
        lower=4, synonyms=(Synonym("log.index.size.max.bytes"),),
    )  # fmt: skip
    yield ConfigDef(
        "index.interval.bytes", INT, "4096",
        "How many bytes of records lie between two entries of the offset index. Smaller steps find an offset with "
        "less scanning and make larger indexes.",
        lower=0, synonyms=(Synonym("log.index.interval.bytes"),),
    )  # fmt: skip
    yield ConfigDef(
        "preallocate", BOOLEAN, "false",
        "Whether a new segment's file gets its full size on disk when it is created.",
        synonyms=(Synonym("log.preallocate"),),
    )  # fmt: skip
    yield ConfigDef(
        "internal.segment.bytes", INT, None, "The size of a segment file without a lower bound, for tests.",
    )  # fmt: skip


def _flushing() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "flush.messages", LONG, str(LONG_MAX),
        "After how many records the log is forced to disk. 1 makes every acknowledgement wait for an fsync, which "
        "appends that arrive together share. By default the operating system decides.",
        lower=1, synonyms=(Synonym("log.flush.interval.messages"),),
    )  # fmt: skip
    yield ConfigDef(
        "flush.ms", LONG, str(LONG_MAX),
        "After how long records are forced to disk; checked every `log.flush.scheduler.interval.ms`.",
        lower=0,
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    )  # fmt: skip


def _records() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "max.message.bytes", INT, "1048588",
        "The largest record batch that is accepted, in bytes as it is stored (after compression).",
        lower=0, synonyms=(Synonym("message.max.bytes"),),
    )  # fmt: skip
    yield ConfigDef(
        "max.decompressed.message.bytes", INT, str(ARRAY_MAX),
        "The largest single record, in bytes after decompression, wherever the broker has to decompress.",
        lower=1, upper=ARRAY_MAX, synonyms=(Synonym("max.decompressed.message.bytes"),),
    )  # fmt: skip
    yield ConfigDef(
        "message.timestamp.type", STRING, "CreateTime",
        "Whether records keep the producer's timestamp (`CreateTime`) or get that of the append (`LogAppendTime`).",
        valid_values=("CreateTime", "LogAppendTime"), synonyms=(Synonym("log.message.timestamp.type"),),
    )  # fmt: skip
    yield ConfigDef(
        "message.timestamp.before.max.ms", LONG, str(LONG_MAX),
        "How far a record's timestamp may lie before the broker's clock; older ones are refused. Only under "
        "`CreateTime`.",
        lower=0, synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    )  # fmt: skip
    yield ConfigDef(
        "message.timestamp.after.max.ms", LONG, "3600000",
        "How far a record's timestamp may lie ahead of the broker's clock; later ones are refused. Only under "
        "`CreateTime`.",
        lower=0, synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    )  # fmt: skip


def _compression() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "compression.type", STRING, "producer",
        "The codec in which batches are stored: `gzip`, `snappy`, `lz4`, `zstd`, `uncompressed`, or `producer` for "
        "whatever the producer chose, which is the fastest.",
        valid_values=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=(Synonym("compression.type"),),
    )  # fmt: skip
    yield ConfigDef(
        "compression.gzip.level", INT, "-1",
        "The level of gzip, 1 (fastest) to 9 (smallest), or -1 for the codec's default.",
        check=_gzip_level, synonyms=(Synonym("compression.gzip.level"),),
    )  # fmt: skip
    yield ConfigDef(
        "compression.lz4.level", INT, "9",
        "The level of lz4, 1 (fastest) to 17 (smallest).",
        lower=1, upper=17, synonyms=(Synonym("compression.lz4.level"),),
    )  # fmt: skip
    yield ConfigDef(
        "compression.zstd.level", INT, "3",
        "The level of zstd, -131072 (fastest) to 22 (smallest).",
        lower=-131072, upper=22, synonyms=(Synonym("compression.zstd.level"),),
    )  # fmt: skip


def _compaction() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "delete.retention.ms", LONG, "86400000",
        "How long a compacted topic keeps a tombstone (a record with a key and no value). A reader that starts at "
        "offset 0 has this long to see every deletion.",
        lower=0, synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    )  # fmt: skip
    yield ConfigDef(
        "min.compaction.lag.ms", LONG, "0",
        "How long a record is kept from compaction after it was written.",
        lower=0, synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    )  # fmt: skip
    yield ConfigDef(
        "max.compaction.lag.ms", LONG, str(LONG_MAX),
        "A log with a record that has waited this long for compaction is compacted, however little of it is dirty. The "
        "active segment is closed at this age, so that its records can be.",
        lower=1, synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    )  # fmt: skip
    yield ConfigDef(
        "min.cleanable.dirty.ratio", DOUBLE, "0.5",
        "The part of a log, 0 to 1, that must be uncompacted before compaction takes it up.",
        lower=0, upper=1, synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    )  # fmt: skip


def _replication() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "min.insync.replicas", INT, "1",
        "How many replicas must be in sync for an append with acks=all to be accepted.",
        lower=1, synonyms=(Synonym("min.insync.replicas"),),
    )  # fmt: skip
    yield ConfigDef(
        "unclean.leader.election.enable", BOOLEAN, "false",
        "Whether a replica that is not in sync may lead when no other is left. It can lose records.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    )  # fmt: skip
    for side in ("leader", "follower"):
        yield ConfigDef(
            f"{side}.replication.throttled.replicas", LIST, "",
            f"The replicas whose replication traffic is throttled on the {side}'s side, as partition:broker, "
            "or * for all.",
            check=_throttled_replicas,
        )  # fmt: skip


def _errors() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "errors.deadletterqueue.group.enable", BOOLEAN, "false",
        "Whether share groups may use this topic as a dead-letter queue.",
    )  # fmt: skip


def _tiers() -> Iterator[ConfigDef]:
    yield ConfigDef(
        "remote.storage.enable", BOOLEAN, "false",
        "Whether closed segments are copied to the remote store (KIP-405), so that local disks keep the newest records "
        "alone. The broker must have `remote.log.storage.system.enable`, and the topic the cleanup policy `delete`.",
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.copy.disable", BOOLEAN, "false",
        "Whether copying is stopped. Segments in the store are still read, and kept as long as the topic says. Local "
        "segments are kept for `retention.ms` and `retention.bytes` then.",
    )  # fmt: skip
    yield ConfigDef(
        "remote.log.delete.on.disable", BOOLEAN, "false",
        "Whether the remote segments are deleted when `remote.storage.enable` is turned off; else that is an error.",
    )  # fmt: skip
    for unit, kept in (
        ("ms", "The age of its newest record at which a local segment is deleted, once it is in the remote store"),
        (
            "bytes",
            "How many bytes of the log stay on the local disk; older segments go once they are in the remote store",
        ),
    ):
        yield ConfigDef(
            f"local.retention.{unit}", LONG, "-2",
            f"{kept}. -2 stands for `retention.{unit}`, -1 for no limit.",
            lower=-2, synonyms=(Synonym(f"log.local.retention.{unit}"),),
        )  # fmt: skip
    for unit, other, default, what in (
        ("ms", "bytes", "0", "How long after its last record a closed segment is copied"),
        ("bytes", "ms", "-1", "After how many newer bytes of the log a closed segment is copied"),
    ):
        yield ConfigDef(
            f"remote.copy.lag.{unit}", LONG, default,
            f"{what}, unless `remote.copy.lag.{other}` asks for it earlier. 0 copies at once; -1 stands for "
            f"`local.retention.{unit}`.",
            lower=-1, synonyms=(Synonym(f"log.remote.copy.lag.{unit}"),),
        )  # fmt: skip


TOPIC_CONFIGS: Mapping[str, ConfigDef] = {
    definition.name: replace(definition, doc=with_reason(definition))
    for group in (
        _retention, _segments, _flushing, _records, _compression, _compaction, _replication, _errors, _tiers,
    )
    for definition in group()
}  # fmt: skip
