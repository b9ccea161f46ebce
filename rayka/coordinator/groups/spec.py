"""The group coordinator as the shell, the router and the codec see it: one table of commands and one of queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayka.coordinator.groups import offset_commands
from rayka.coordinator.groups.classic.requests import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from rayka.coordinator.groups.consumer.requests import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from rayka.coordinator.groups.coordinator import GroupCoordinator
from rayka.coordinator.groups.record_formats import decode, encode
from rayka.coordinator.groups.requests import (
    DeleteGroupsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.groups.share import commands
from rayka.coordinator.groups.share.requests import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupPartitionsRequest,
    ShareGroupStateDeletedRequest,
    ShareGroupStateInitializedRequest,
)
from rayka.coordinator.request import Request
from rayka.coordinator.spec import Command, CoordinatorConfigs, CoordinatorSpec, Query

OFFSETS_TOPIC = "__consumer_offsets"

COMMANDS: Mapping[type[Request[Any]], Command[GroupCoordinator]] = {
    JoinGroupRequest: GroupCoordinator.join_group,
    SyncGroupRequest: GroupCoordinator.sync_group,
    HeartbeatRequest: GroupCoordinator.heartbeat,
    LeaveGroupRequest: GroupCoordinator.leave_group,
    ConsumerGroupHeartbeatRequest: GroupCoordinator.consumer_group_heartbeat,
    OffsetCommitRequest: offset_commands.commit,
    TxnOffsetCommitRequest: offset_commands.txn_commit,
    OffsetDeleteRequest: offset_commands.delete,
    DeleteGroupsRequest: GroupCoordinator.delete_groups,
    ShareGroupHeartbeatRequest: commands.heartbeat,
    ShareGroupStateInitializedRequest: commands.state_initialized,
    ShareGroupStateDeletedRequest: commands.state_deleted,
    AlterShareGroupOffsetsRequest: commands.alter_offsets,
    DeleteShareGroupOffsetsRequest: commands.delete_offsets,
}
QUERIES: Mapping[type[Request[Any]], Query[GroupCoordinator]] = {
    OffsetFetchRequest: offset_commands.fetch,
    ListGroupsRequest: GroupCoordinator.list_groups,
    DescribeGroupsRequest: GroupCoordinator.describe_groups,
    ConsumerGroupDescribeRequest: GroupCoordinator.consumer_group_describe,
    ShareGroupPartitionsRequest: commands.partitions,
    ShareGroupDescribeRequest: commands.describe,
}


def _create(configs: CoordinatorConfigs) -> GroupCoordinator:
    coordinator = GroupCoordinator(GroupSettings.parse(configs.broker))
    coordinator.on_new_configs(configs)
    return coordinator


GROUPS: CoordinatorSpec[GroupCoordinator] = CoordinatorSpec(
    name="group",
    topic=OFFSETS_TOPIC,
    num_partitions_config="offsets.topic.num.partitions",
    create=_create,
    encode=encode,
    decode=decode,
    commands=COMMANDS,
    queries=QUERIES,
)
