"""Fetching a range from a leader that answers with errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark.source import fetcher
from rayka.spark.source.fetcher import RangeFetcher
from rayka.spark.source.options import FetchSettings
from rayka.types import IsolationLevel

TIMEOUT_S = 60.0


class Leader:
    """Answers each fetch with the error."""

    def __init__(self, error: ErrorCode) -> None:
        self.asked = 0
        self._error = error

    def request(self, _: object) -> SimpleNamespace:
        self.asked += 1
        partition = SimpleNamespace(error_code=self._error, records=None, aborted_transactions=None)
        return SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[partition])])


@pytest.mark.parametrize(
    ("error", "raised", "times"),
    [
        (ErrorCode.CORRUPT_MESSAGE, "CORRUPT_MESSAGE: clicks-3 cannot be fetched at offset 7", 1),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "REQUEST_TIMED_OUT: clicks-3 from offset 7 to 9: NOT_LEADER", 62),
    ],
)
def test_only_an_error_that_may_pass_is_waited_for(
    error: ErrorCode, raised: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka calls CORRUPT_MESSAGE retriable, for producers: of a reader's leader it does not pass."""
    leader, seconds = Leader(error), iter(range(1000))
    monkeypatch.setattr(fetcher._connections, "_leader", lambda settings, offsets: leader)
    settings = FetchSettings("nobody:9092", IsolationLevel.READ_COMMITTED, True, TIMEOUT_S, 1 << 20)
    reader = RangeFetcher(settings, ["value"], clock=lambda: next(seconds), sleep=lambda _: None)
    with pytest.raises(RaykaError, match=raised):
        list(reader.read(OffsetRange("clicks", 3, 7, 9)))
    assert leader.asked == times
