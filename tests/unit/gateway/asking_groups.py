"""Asking a gateway about groups, with the request classes of any version."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from rayka.errors import ErrorCode
from rayka.gateway.api import APIS
from rayka.gateway.wire.schema import ApiKey
from tests.support.consumer_protocol import subscription_bytes
from tests.unit.gateway.asking import make
from tests.unit.gateway.wire_client import WireClient

SESSION = datetime.timedelta(seconds=10)
AT_ONCE = {"group_initial_rebalance_delay_ms": "0"}
ALL_OPERATIONS = 0b110101001000
SUBSCRIPTION = subscription_bytes(("a",))


async def ask(client: WireClient, key: ApiKey, version: int, /, **values: Any) -> Any:
    """The response to a request; a version above the last one of this API stands for the last one."""
    version = min(version, APIS[key].max_version)
    return await client.call(key, version, make(key, version, f"{key.title}Request", **values))


def join_values(version: int, **values: Any) -> dict[str, Any]:
    protocol = make(ApiKey.JOIN_GROUP, version, "JoinGroupRequestProtocol", name="range", metadata=SUBSCRIPTION)
    fields: dict[str, Any] = {"group_id": "g", "session_timeout": SESSION, "rebalance_timeout": SESSION}
    fields |= {"member_id": "", "protocol_type": "consumer", "protocols": (protocol,), "reason": "first"}
    return {"group_instance_id": None, **fields, **values}


async def join(client: WireClient, version: int, **values: Any) -> Any:
    """A member that is in: from version 4 on it has to come back with its id."""
    fields = join_values(version, **values)
    joined = await ask(client, ApiKey.JOIN_GROUP, version, **fields)
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        fields["member_id"] = joined.member_id
        joined = await ask(client, ApiKey.JOIN_GROUP, version, **fields)
    assert joined.error_code == 0
    return joined


async def sync(client: WireClient, version: int, joined: Any, **values: Any) -> Any:
    version = min(version, APIS[ApiKey.SYNC_GROUP].max_version)
    entry = make(
        ApiKey.SYNC_GROUP, version, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"yours"
    )
    fields: dict[str, Any] = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
    fields |= {"protocol_type": "consumer", "protocol_name": "range", "assignments": (entry,)}
    return await ask(client, ApiKey.SYNC_GROUP, version, **{"group_instance_id": None, **fields, **values})


async def leave(client: WireClient, version: int, member_id: str) -> Any:
    version = min(version, APIS[ApiKey.LEAVE_GROUP].max_version)
    members: tuple[Any, ...] = ()
    if version >= 3:
        identity = {"member_id": member_id, "group_instance_id": None, "reason": "done"}
        members = (make(ApiKey.LEAVE_GROUP, version, "MemberIdentity", **identity),)
    return await ask(client, ApiKey.LEAVE_GROUP, version, group_id="g", member_id=member_id, members=members)


async def heartbeat(client: WireClient, version: int, **values: Any) -> Any:
    fields: dict[str, Any] = {"group_id": "g", "member_id": "" if version == 0 else "me", "member_epoch": 0}
    fields |= {"instance_id": None, "rack_id": None, "rebalance_timeout": SESSION, "server_assignor": None}
    fields |= {"subscribed_topic_names": ("a",), "subscribed_topic_regex": None, "topic_partitions": ()}
    return await ask(client, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **(fields | values))


def committing(version: int, topic: Any, *offsets: int, **values: Any) -> dict[str, Any]:
    """A commit of offsets to the partitions of a topic, from outside the group."""
    key = ApiKey.OFFSET_COMMIT
    partitions = tuple(
        make(
            key, version, "OffsetCommitRequestPartition",
            partition_index=index, committed_offset=offset, committed_metadata=f"m{index}",
            committed_leader_epoch=4, commit_timestamp=-1,
        )
        for index, offset in enumerate(offsets)
    )  # fmt: skip
    names = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"name": topic}
    topics = (make(key, version, "OffsetCommitRequestTopic", partitions=partitions, **names),)
    fields: dict[str, Any] = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    return {"retention_time": datetime.timedelta(milliseconds=-1), "group_instance_id": None, **fields, **values}


def commit_errors(response: Any) -> list[int]:
    return [int(partition.error_code) for topic in response.topics for partition in topic.partitions]
