"""Every setting: name, type, default, bounds and meaning, in one place (Kafka 4.4's, and rayka's own)."""

from __future__ import annotations

from rayka.config.broker import BrokerConfig, check_broker_configs
from rayka.config.broker_settings import BROKER_CONFIGS
from rayka.config.definition import ConfigDef, ConfigType, ConfigValue, UpdateMode, parse
from rayka.config.describe import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    describe_broker,
    describe_default_broker,
    describe_group,
    describe_topic,
)
from rayka.config.listeners import Endpoint
from rayka.config.log import LogConfig, check_topic_configs, resolve
from rayka.config.topic import TOPIC_CONFIGS

__all__ = [
    "BROKER_CONFIGS",
    "TOPIC_CONFIGS",
    "BrokerConfig",
    "ConfigDef",
    "ConfigEntry",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ConfigValue",
    "Endpoint",
    "LogConfig",
    "UpdateMode",
    "check_broker_configs",
    "check_topic_configs",
    "describe_broker",
    "describe_default_broker",
    "describe_group",
    "describe_topic",
    "parse",
    "resolve",
]
