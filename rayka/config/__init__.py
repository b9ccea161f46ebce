"""Every setting: name, type, default, bounds and meaning, in one place (Kafka 4.4's, and rayka's own)."""

from __future__ import annotations

from rayka.config.broker import BrokerConfig
from rayka.config.broker_settings import BROKER_CONFIGS
from rayka.config.definition import ConfigDef, ConfigType, ConfigValue, UpdateMode, parse
from rayka.config.describe import ConfigEntry, ConfigSource, ConfigSynonym
from rayka.config.log import LogConfig
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
    "LogConfig",
    "UpdateMode",
    "parse",
]
