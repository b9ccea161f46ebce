"""The table of all APIs: ApiVersions answers from it, and docs/compatibility.md is made of it.

Versions: all that Kafka 4.4 serves, and below those the ones that Kafka 4 dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rayka.gateway.handlers import api_versions, cluster, configs, features, metadata, offsets, records, sasl, topics
from rayka.gateway.handlers.fetch import handler as fetch
from rayka.gateway.handlers.groups import (
    classic,
    consumer,
    describe,
    find_coordinator,
    offset_commit,
    offset_fetch,
    share,
    share_offsets,
    share_state,
)
from rayka.gateway.handlers.produce import handler as produce
from rayka.gateway.handlers.share import acknowledge as share_acknowledge
from rayka.gateway.handlers.share import fetch as share_fetch
from rayka.gateway.handlers.transactions import describe as describe_transactions
from rayka.gateway.handlers.transactions import offsets as transaction_offsets
from rayka.gateway.handlers.transactions import partitions as transactions
from rayka.gateway.handlers.transactions import producer_ids
from rayka.gateway.server.request import Api
from rayka.gateway.wire.schema import ApiKey


def table(*rows: Api) -> Mapping[int, Api]:
    """Rows by API key. A key that stands twice is a mistake."""
    apis = {int(row.key): row for row in rows}
    assert len(apis) == len(rows)
    return apis


APIS: Final = table(
    Api(ApiKey.PRODUCE, 0, 13, 9, handle_frame=produce.handle, pipelined=True, first_pipelined=3),
    Api(ApiKey.FETCH, 0, 18, 12, handle_frame=fetch.handle),
    Api(ApiKey.LIST_OFFSETS, 0, 11, 6, offsets.handle_list_offsets),
    Api(ApiKey.METADATA, 0, 13, 9, metadata.handle),
    Api(ApiKey.OFFSET_COMMIT, 0, 10, 8, offset_commit.handle, offset_commit.handle_frame),
    Api(ApiKey.OFFSET_FETCH, 0, 10, 6, offset_fetch.handle),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, 3, find_coordinator.handle),
    Api(ApiKey.JOIN_GROUP, 0, 9, 6, classic.handle_join),
    Api(ApiKey.HEARTBEAT, 0, 4, 4, classic.handle_heartbeat),
    Api(ApiKey.LEAVE_GROUP, 0, 5, 4, classic.handle_leave),
    Api(ApiKey.SYNC_GROUP, 0, 5, 4, classic.handle_sync),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, describe.handle_describe),
    Api(ApiKey.LIST_GROUPS, 0, 5, 3, describe.handle_list),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, 2, sasl.handle_handshake),
    Api(ApiKey.API_VERSIONS, 0, 5, 3, handle_frame=api_versions.handle),
    Api(ApiKey.CREATE_TOPICS, 0, 7, 5, topics.handle_create),
    Api(ApiKey.DELETE_TOPICS, 0, 6, 4, topics.handle_delete),
    Api(ApiKey.DELETE_RECORDS, 0, 2, 2, records.handle_delete_records),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 6, 2, producer_ids.handle),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, 4, offsets.handle_offset_for_leader_epoch),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3, transactions.handle_add_partitions),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, transactions.handle_add_offsets),
    Api(ApiKey.END_TXN, 0, 5, 3, transactions.handle_end),
    Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1, describe_transactions.handle_write_markers),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 6, 3, transaction_offsets.handle),
    Api(ApiKey.DESCRIBE_CONFIGS, 0, 4, 4, configs.handle_describe),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, 2, configs.handle_alter),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 0, 5, 2, records.handle_describe_log_dirs),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2, sasl.handle_authenticate),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2, topics.handle_create_partitions),
    Api(ApiKey.DELETE_GROUPS, 0, 3, 2, describe.handle_delete),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1, configs.handle_incremental_alter),
    Api(ApiKey.OFFSET_DELETE, 0, 0, 1, offset_commit.handle_delete),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, 0, features.handle),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, cluster.handle_describe_cluster),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0, describe_transactions.handle_producers),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0, describe_transactions.handle_describe),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0, describe_transactions.handle_list),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0, consumer.handle_heartbeat),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0, consumer.handle_describe),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0, configs.handle_list_resources),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0, cluster.handle_describe_topic_partitions),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 0, share.handle_heartbeat),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 0, share.handle_describe),
    Api(ApiKey.SHARE_FETCH, 1, 2, 0, handle_frame=share_fetch.handle),
    Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 0, share_acknowledge.handle),
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, 0, share_state.handle_initialize),
    Api(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, 0, share_state.handle_read),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, 0, share_state.handle_write),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, 0, share_state.handle_delete),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, 0, share_state.handle_read_summary),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0, share_offsets.handle_describe),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0, share_offsets.handle_alter),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0, share_offsets.handle_delete),
)
