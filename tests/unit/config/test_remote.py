"""Which configs go with tiered storage."""

from __future__ import annotations

import pytest

from rayka.config import BrokerConfig, check_topic_configs
from rayka.config.remote import check_remote_change
from rayka.errors import RaykaError

ENABLED = {"remote.log.storage.system.enable": "true", "rsm.config.url": "file:///store"}
TIERED = {"remote.storage.enable": "true"}


def test_a_topic_with_tiered_storage_is_accepted() -> None:
    check_topic_configs(TIERED | {"local.retention.ms": "1000", "retention.ms": "2000"}, ENABLED)


@pytest.mark.parametrize(
    ("configs", "broker", "reason"),
    [
        ({}, {}, "Tiered Storage functionality is disabled in the broker"),
        ({"cleanup.policy": "compact"}, ENABLED, "only supports topics with cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, ENABLED, "only supports topics with cleanup.policy=delete"),
        ({"local.retention.ms": "3", "retention.ms": "2"}, ENABLED, "more than retention.ms property value: 2"),
        (
            {"local.retention.bytes": "3", "retention.bytes": "2"},
            ENABLED,
            "more than retention.bytes property value: 2",
        ),
        ({"local.retention.bytes": "-1", "retention.bytes": "2"}, ENABLED, "more than retention.bytes property value"),
    ],
)
def test_what_does_not_go_together_is_refused(configs: dict[str, str], broker: dict[str, str], reason: str) -> None:
    with pytest.raises(RaykaError, match=reason):
        check_topic_configs(TIERED | configs, broker)


def test_tiered_storage_is_turned_off_only_with_the_deletion_of_what_is_in_the_store() -> None:
    with pytest.raises(RaykaError, match="without deleting remote data"):
        check_remote_change(TIERED, {})
    with pytest.raises(RaykaError, match="without deleting remote data"):
        check_remote_change({"remote.storage.enable": "TRUE"}, {"remote.storage.enable": "false"})
    check_remote_change(TIERED, {"remote.storage.enable": "True"})
    check_remote_change(TIERED, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "TRUE"})
    check_remote_change({}, {})


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://store",
        "file://relative",
        "/store",
        "s3://",
        "s3://key:secret@bucket",
        "s3://bucket?region=x",
        "file:///a#b",
    ],
)
def test_a_broker_with_tiered_storage_needs_the_url_of_a_store(url: str) -> None:
    with pytest.raises(RaykaError, match=r"rsm\.config\.url"):
        BrokerConfig.parse(ENABLED | {"rsm.config.url": url})
    with pytest.raises(RaykaError, match=r"rsm\.config\.url"):
        BrokerConfig.parse({"remote.log.storage.system.enable": "true"})
