"""CreateTopics 0: no validation alone, no error messages."""

import datetime

from rayka.gateway.wire.versions.definition import message, of


@message(19, 0)
class CreatableReplicaAssignment:
    """The brokers of one partition, the preferred leader first."""

    partition_index: int = of("int32")
    broker_ids: tuple[int, ...] = of("int32")


@message(19, 0)
class CreatableTopicConfig:
    """A setting."""

    name: str = of("string")
    value: str | None = of("string")


@message(19, 0)
class CreatableTopic:
    """A topic, with numbers or with assignments."""

    name: str = of("string")
    num_partitions: int = of("int32")
    replication_factor: int = of("int16")
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


@message(19, 0)
class CreateTopicsRequest:
    """The topics, and how long to wait for them."""

    topics: tuple[CreatableTopic, ...]
    timeout: datetime.timedelta = of("timedelta_i32")


@message(19, 0)
class CreatableTopicResult:
    """The outcome for one topic."""

    name: str = of("string")
    error_code: int = of("error_code")


@message(19, 0)
class CreateTopicsResponse:
    """The answer."""

    topics: tuple[CreatableTopicResult, ...]
