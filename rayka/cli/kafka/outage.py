"""What `rayka consume` says while it waits for a broker that has gone away."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Final

STATISTICS_MS: Final = 1000
_SAID_AFTER_S: Final = 3.0
_CONNECTED: Final = frozenset({"UP", "UPDATE"})


class BrokerOutage:
    """Follows librdkafka's statistics. After three seconds without a connection it prints a line, once per outage."""

    def __init__(self, bootstrap_servers: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._clock = clock
        self._connected_s = clock()
        self._is_said = False

    def note(self, statistics: str) -> None:
        """Take the statistics of a client, which come every `STATISTICS_MS` (`stats_cb`)."""
        now_s = self._clock()
        if any(broker["state"] in _CONNECTED for broker in json.loads(statistics)["brokers"].values()):
            self._connected_s, self._is_said = now_s, False
        elif not self._is_said and now_s - self._connected_s >= _SAID_AFTER_S:
            self._is_said = True
            print(f"rayka: waiting for {self._bootstrap_servers}", file=sys.stderr)
