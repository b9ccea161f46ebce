"""Makes docs/compatibility.md from the API table: `python -m rayka.gateway.compatibility > docs/compatibility.md`."""

from __future__ import annotations

import sys

from rayka.gateway.api import APIS
from rayka.gateway.server.request import Api
from rayka.gateway.wire.schema import ApiKey

HEAD = """\
# What a Kafka client finds

<!-- Made by `python -m rayka.gateway.compatibility > docs/compatibility.md`; do not edit. -->

The APIs that a gateway serves, with every version of each. The versions are those of Apache Kafka 4.4, and
below them the ones that Kafka 4 dropped, for clients of ten years ago. An API that is not in this table is not
advertised, and a request for it closes the connection, as in Kafka.

| API | key | versions | remarks |
| --- | ---: | --- | --- |
"""

REMARKS = {
    ApiKey.PRODUCE: (
        "0-2 carry message formats 0 and 1, which are stored as record batches; "
        "a transaction is verified with its coordinator, and begun by the produce itself from 12 on (KIP-890)"
    ),
    ApiKey.FETCH: (
        "0-3 get records converted to message formats 0 and 1, without headers; "
        "zstd batches cannot be converted and are answered with UNSUPPORTED_COMPRESSION_TYPE; "
        "incremental sessions from 7 on; by topic id from 13 on"
    ),
    ApiKey.LIST_OFFSETS: ("0 lists where segments begin; -4, -5 and -6 tell what tiered storage has copied"),
    ApiKey.METADATA: "by topic id from 12 on; creates topics as `auto.create.topics.enable` and the request say",
    ApiKey.OFFSET_COMMIT: "0 stores offsets in the broker too, not in ZooKeeper; by topic id from 10 on",
    ApiKey.OFFSET_FETCH: "many groups from 8 on; by topic id from 10 on",
    ApiKey.FIND_COORDINATOR: ("of groups and transactional ids, many at once from 4 on, of share-partitions from 6 on"),
    ApiKey.DESCRIBE_GROUPS: "classic groups; a missing group is Dead before 6",
    ApiKey.LIST_GROUPS: "by state from 4 on, by type (classic, consumer, share) from 5 on",
    ApiKey.CREATE_PARTITIONS: "internal topics and `__remote_log_metadata` keep their number of partitions",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "topics by pattern from 1 on (KIP-848)",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "with the lag from 1 on (KIP-1226)",
    ApiKey.SASL_HANDSHAKE: "refused with ILLEGAL_SASL_STATE, as by a listener of Kafka without SASL",
    ApiKey.SASL_AUTHENTICATE: "as SaslHandshake",
    ApiKey.API_VERSIONS: "a version above these is answered in version 0 with UNSUPPORTED_VERSION",
    ApiKey.INIT_PRODUCER_ID: "keeping a prepared transaction (6) is answered with UNSUPPORTED_VERSION, as in Kafka 4.4",
    ApiKey.ADD_PARTITIONS_TO_TXN: "several transactions at once, and verification, from 4 on",
    ApiKey.END_TXN: "a new epoch for each transaction from 5 on (KIP-890)",
    ApiKey.TXN_OFFSET_COMMIT: "by topic id from 6 on",
    ApiKey.LIST_TRANSACTIONS: "by duration from 1 on, by pattern from 2 on",
    ApiKey.DESCRIBE_CONFIGS: "of topics, brokers and groups",
    ApiKey.LIST_CONFIG_RESOURCES: "0 lists client metrics, of which there are none",
}


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_row(api) for api in sorted(APIS.values(), key=lambda api: api.key))


def _row(api: Api) -> str:
    versions = f"{api.min_version}-{api.max_version}" if api.max_version > api.min_version else str(api.min_version)
    return f"| {api.key.title} | {api.key.value} | {versions} | {REMARKS.get(api.key, '')} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
