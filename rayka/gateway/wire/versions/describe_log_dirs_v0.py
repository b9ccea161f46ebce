"""DescribeLogDirs 0: as version 1."""

import datetime

from rayka.gateway.wire.versions.definition import message, of


@message(35, 0)
class DescribableLogDirTopic:
    """A topic and the partitions wanted."""

    topic: str = of("string")
    partitions: tuple[int, ...] = of("int32")


@message(35, 0)
class DescribeLogDirsRequest:
    """The topics wanted, null for all."""

    topics: tuple[DescribableLogDirTopic, ...] | None


@message(35, 0)
class DescribeLogDirsPartition:
    """A replica: bytes, and how far it is behind."""

    partition_index: int = of("int32")
    partition_size: int = of("int64")
    offset_lag: int = of("int64")
    is_future_key: bool = of("bool")


@message(35, 0)
class DescribeLogDirsTopic:
    """A topic."""

    name: str = of("string")
    partitions: tuple[DescribeLogDirsPartition, ...]


@message(35, 0)
class DescribeLogDirsResult:
    """A log directory."""

    error_code: int = of("error_code")
    log_dir: str = of("string")
    topics: tuple[DescribeLogDirsTopic, ...]


@message(35, 0)
class DescribeLogDirsResponse:
    """The answer."""

    throttle_time: datetime.timedelta = of("timedelta_i32")
    results: tuple[DescribeLogDirsResult, ...]
