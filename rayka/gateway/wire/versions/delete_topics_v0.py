"""DeleteTopics 0: no throttle time."""

import datetime

from rayka.gateway.wire.versions.definition import message, of


@message(20, 0)
class DeleteTopicsRequest:
    """The topics, and how long to wait."""

    topic_names: tuple[str, ...] = of("string")
    timeout: datetime.timedelta = of("timedelta_i32")


@message(20, 0)
class DeletableTopicResult:
    """The outcome for one topic."""

    name: str = of("string")
    error_code: int = of("error_code")


@message(20, 0)
class DeleteTopicsResponse:
    """The answer."""

    responses: tuple[DeletableTopicResult, ...]
