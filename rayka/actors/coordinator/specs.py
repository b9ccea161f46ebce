"""The kinds of coordinators that every partition actor runs, by the internal topic that holds their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayka.coordinator.groups.spec import GROUPS
from rayka.coordinator.shares.spec import SHARES
from rayka.coordinator.spec import CoordinatorSpec
from rayka.coordinator.transactions.spec import TRANSACTIONS

COORDINATORS: Mapping[str, CoordinatorSpec[Any]] = {spec.topic: spec for spec in (GROUPS, SHARES, TRANSACTIONS)}
