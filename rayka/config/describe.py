"""Configs as DescribeConfigs shows them: each with its value and where the value comes from."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rayka.config.broker_settings import BROKER_CONFIGS
from rayka.config.definition import ConfigDef, ConfigType, ConfigValue, Synonym
from rayka.config.topic import TOPIC_CONFIGS


class ConfigSource(enum.IntEnum):
    """Where a value comes from, with the protocol's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    """One place that gives a value: a name, its value there and the kind of place."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of a resource. `value` is None where there is none, or where it is secret.

    `synonyms` are the places that give a value, the one that counts first.
    """

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str = ""


def describe_topic(
    topic: Mapping[str, str],
    static: Mapping[str, str],
    dynamic_default: Mapping[str, str],
    dynamic_broker: Mapping[str, str] | None = None,
    names: Collection[str] | None = None,
) -> tuple[ConfigEntry, ...]:
    """Every config of a topic (or those with these names), by name.

    `topic` holds its own configs; then the broker's settings: from its start, for all brokers, for it alone.
    """
    places = _broker_places(static, dynamic_default, dynamic_broker or {})
    return tuple(_topic_entry(definition, topic, places) for definition in _chosen(TOPIC_CONFIGS, names))


def describe_broker(
    static: Mapping[str, str],
    dynamic_default: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    names: Collection[str] | None = None,
) -> tuple[ConfigEntry, ...]:
    """Every setting of a broker (or those with these names), by name."""
    places = _broker_places(static, dynamic_default, dynamic_broker)
    return tuple(_broker_entry(definition, places) for definition in _chosen(BROKER_CONFIGS, names))


def describe_default_broker(
    dynamic_default: Mapping[str, str], names: Collection[str] | None = None
) -> tuple[ConfigEntry, ...]:
    """The settings that were changed at run time for all brokers, by name."""
    place = (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, dynamic_default)
    return tuple(
        _broker_entry(definition, (place,), with_default=False)
        for definition in _chosen(BROKER_CONFIGS, names)
        if definition.name in dynamic_default
    )


def describe_group(
    definitions: Mapping[str, ConfigDef],
    group: Mapping[str, str],
    defaults: Mapping[str, str],
    names: Collection[str] | None = None,
) -> tuple[ConfigEntry, ...]:
    """Every config of a group; `defaults` are the values that the broker's settings give."""
    entries = []
    for definition in _chosen(definitions, names):
        chain = [
            ConfigSynonym(definition.name, values[definition.name], source)
            for source, values in ((ConfigSource.GROUP_CONFIG, group), (ConfigSource.DEFAULT_CONFIG, defaults))
            if definition.name in values
        ]
        entries.append(_entry(definition, _first_value(chain, definition), tuple(chain), read_only=False))
    return tuple(entries)


Places = tuple[tuple[ConfigSource, Mapping[str, str]], ...]


def _broker_places(static: Mapping[str, str], default: Mapping[str, str], broker: Mapping[str, str]) -> Places:
    return (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, broker),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, default),
        (ConfigSource.STATIC_BROKER_CONFIG, static),
    )


def _chosen(configs: Mapping[str, ConfigDef], names: Collection[str] | None) -> list[ConfigDef]:
    return [configs[name] for name in sorted(configs) if (names is None or name in names) and _is_public(name)]


def _is_public(name: str) -> bool:
    return not name.startswith("internal.")


def _chain(synonyms: Collection[Synonym], places: Places, *, with_default: bool = True) -> Iterator[ConfigSynonym]:
    """Every place that gives a value to one of these broker settings, the strongest first.

    Of several settings for one thing (log.retention.ms, .minutes, .hours) a weaker one only counts where no
    stronger one is set at all.
    """
    for synonym in synonyms:
        for source, values in places:
            if synonym.name in values:
                yield ConfigSynonym(synonym.name, _public(BROKER_CONFIGS[synonym.name], values), source)
    for synonym in synonyms:
        default = BROKER_CONFIGS[synonym.name].default
        if with_default and default is not None:
            yield ConfigSynonym(synonym.name, default, ConfigSource.DEFAULT_CONFIG)


def _public(definition: ConfigDef, values: Mapping[str, str]) -> str | None:
    return None if definition.sensitive else values[definition.name]


def _topic_entry(definition: ConfigDef, topic: Mapping[str, str], places: Places) -> ConfigEntry:
    """Describe a topic config.

    As in Kafka, only `log.retention.ms` is a synonym of `retention.ms`, although `log.retention.hours` can set it too.
    """
    chain = list(_chain(definition.synonyms, places))
    if definition.name in topic:
        chain.insert(0, ConfigSynonym(definition.name, topic[definition.name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
    value = definition.default
    if chain:
        value = chain[0].value
        factors = {synonym.name: synonym for synonym in definition.synonyms}
        if chain[0].source is not ConfigSource.DYNAMIC_TOPIC_CONFIG and value is not None:
            value = to_text(factors[chain[0].name].convert(definition, value))
    names = {definition.name, *(synonym.name for synonym in definition.synonyms[:1])}
    return _entry(definition, value, tuple(each for each in chain if each.name in names), read_only=False)


def _broker_entry(definition: ConfigDef, places: Places, *, with_default: bool = True) -> ConfigEntry:
    chain = tuple(_chain((Synonym(definition.name),), places, with_default=with_default))
    return _entry(definition, _first_value(chain, definition), chain, read_only=definition.read_only)


def _first_value(chain: Collection[ConfigSynonym], definition: ConfigDef) -> str | None:
    return next((synonym.value for synonym in chain), None if definition.sensitive else definition.default)


def _entry(
    definition: ConfigDef, value: str | None, chain: tuple[ConfigSynonym, ...], *, read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        name=definition.name,
        value=value,
        source=chain[0].source if chain else ConfigSource.DEFAULT_CONFIG,
        type=definition.type,
        read_only=read_only,
        is_sensitive=definition.sensitive,
        synonyms=chain,
        documentation=definition.doc,
    )


def to_text(value: ConfigValue) -> str | None:
    """The text of a typed value, as it would be written in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return None if value is None else str(value)
