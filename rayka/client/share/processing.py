"""How a record is acknowledged, by how its processing ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

from rayka.client.share.records import ShareRecord
from rayka.errors import RaykaError

logger = logging.getLogger(__name__)

Retriable: TypeAlias = tuple[type[BaseException], ...]
RETRIABLE: Final[Retriable] = (ConnectionError, TimeoutError)


class Acknowledging(Protocol):
    """A share consumer."""

    def holds(self, record: ShareRecord) -> bool:
        """Whether the record is still to be acknowledged."""

    def accept(self, record: ShareRecord) -> None:
        """The record is done."""

    def release(self, record: ShareRecord, delay_ms: int | None = None) -> None:
        """Deliver the record again."""

    def reject(self, record: ShareRecord, reason: str | BaseException | None = None) -> None:
        """Never deliver the record again."""


def is_retriable(error: BaseException, retriable: Retriable) -> bool:
    """Whether the record may be processed well another time. Kafka marks those of its own errors that are."""
    return error.code.retriable if isinstance(error, RaykaError) else isinstance(error, retriable)


@contextmanager
def processing(
    consumer: Acknowledging, record: ShareRecord, retriable: Retriable, delay_ms: int | None
) -> Iterator[ShareRecord]:
    """See `AsyncShareConsumer.processing`."""
    try:
        yield record
    except Exception as error:
        if not consumer.holds(record):
            logger.warning("%s raised an error after it was acknowledged", name_of(record), exc_info=error)
        elif is_retriable(error, retriable):
            logger.info("%s is released: %r", name_of(record), error)
            consumer.release(record, delay_ms)
        else:
            logger.warning("%s is rejected, because its processing failed", name_of(record), exc_info=error)
            consumer.reject(record, error)
    except BaseException:
        if consumer.holds(record):
            consumer.release(record, 0)
        raise
    else:
        if consumer.holds(record):
            consumer.accept(record)


def name_of(record: ShareRecord) -> str:
    """How messages name it."""
    return f"offset {record.offset} of {record.topic}-{record.partition}"
