"""The share coordinator as the shell, the router and the codec see it: one table of commands and one of queries."""

from __future__ import annotations

from rayka.coordinator.shares.coordinator import ShareCoordinator
from rayka.coordinator.shares.records import decode, encode
from rayka.coordinator.shares.requests import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from rayka.coordinator.shares.settings import ShareCoordinatorSettings
from rayka.coordinator.spec import CoordinatorSpec

STATE_TOPIC = "__share_group_state"

SHARES: CoordinatorSpec[ShareCoordinator] = CoordinatorSpec(
    name="share",
    topic=STATE_TOPIC,
    num_partitions_config="share.coordinator.state.topic.num.partitions",
    create=lambda configs: ShareCoordinator(ShareCoordinatorSettings.parse(configs.broker)),
    encode=encode,
    decode=decode,
    commands={
        InitializeShareGroupStateRequest: ShareCoordinator.initialize,
        ReadShareGroupStateRequest: ShareCoordinator.read,
        WriteShareGroupStateRequest: ShareCoordinator.write,
        DeleteShareGroupStateRequest: ShareCoordinator.delete,
    },
    queries={ReadShareGroupStateSummaryRequest: ShareCoordinator.read_summary},
    is_compacted=False,
)
