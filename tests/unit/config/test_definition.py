"""How the text of a setting is read, and what is said about a bad one."""

from __future__ import annotations

import pytest

from rayka.config import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigDef, ConfigType, parse
from rayka.errors import ErrorCode, RaykaError


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "1000", 1000),
        ("retention.ms", " 5 ", 5),
        ("retention.ms", "-1", -1),
        ("preallocate", "TRUE", True),
        ("preallocate", "false", False),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("cleanup.policy", "compact, delete", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        ("compression.type", "zstd", "zstd"),
        ("compression.gzip.level", "-1", -1),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
    ],
)
def test_a_good_text_becomes_a_typed_value(name: str, text: str, value: object) -> None:
    assert parse(TOPIC_CONFIGS, name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "1_000", "Invalid value 1_000 for configuration retention.ms: Not a number of type LONG"),
        (
            "retention.ms",
            "9" * 5000,
            f"Invalid value {'9' * 5000} for configuration retention.ms: Not a number of type LONG",
        ),
        ("retention.ms", "1.5", "Invalid value 1.5 for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            "retention.ms",
            "9223372036854775808",
            "Invalid value 9223372036854775808 for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "segment.bytes",
            "2147483648",
            "Invalid value 2147483648 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            "compression.zstd.level",
            "23",
            "Invalid value 23 for configuration compression.zstd.level: Value must be no more than 22",
        ),
        (
            "preallocate",
            "maybe",
            "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "cleanup.policy",
            "delete,zap",
            "Invalid value zap for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("cleanup.policy", "compact,,delete", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "min.cleanable.dirty.ratio",
            "nan",
            "Invalid value nan for configuration min.cleanable.dirty.ratio: Value must be at least 0",
        ),
    ],
)
def test_a_bad_text_is_refused_with_name_value_and_reason(name: str, text: str, message: str) -> None:
    with pytest.raises(RaykaError) as caught:
        parse(TOPIC_CONFIGS, name, text)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_CONFIG, message)


def test_an_unknown_topic_config_is_refused_by_name() -> None:
    with pytest.raises(RaykaError, match=r"INVALID_CONFIG: Unknown topic config name: retention\.msec"):
        parse(TOPIC_CONFIGS, "retention.msec", "1")


def test_a_secret_is_not_shown_in_an_error() -> None:
    secret = ConfigDef("ssl.key.password", ConfigType.PASSWORD, None, "", sensitive=True, check=lambda _: "too short")
    with pytest.raises(RaykaError) as caught:
        secret.parse("hunter2")
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("definition", [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()], ids=lambda d: d.name)
def test_every_default_is_valid_and_every_setting_has_a_doc(definition: ConfigDef) -> None:
    assert definition.default is None or definition.parse(definition.default) is not None
    assert definition.doc.endswith(".")
