"""Generates docs/configuration.md from the definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from rayka.config.broker_settings import BROKER_CONFIGS
from rayka.config.definition import INT_MAX, LONG_MAX, ConfigDef, ConfigType
from rayka.config.groups import GROUP_CONFIGS, broker_synonym
from rayka.config.ignored import IGNORED_CONFIGS
from rayka.config.topic import TOPIC_CONFIGS

_INTRODUCTION = """\
# Configuration

This page is made from the code: `python -m rayka.config > docs/configuration.md`.

Names, types, defaults and bounds are those of Apache Kafka 4.4; where rayka differs, the text says so. Broker
settings are given to `rayka up` with `--config NAME=VALUE` or in a file of Java properties with `--config-file`.
Those marked *cluster-wide* or *per-broker* can be changed at run time with `rayka configs`, or with any Kafka tool.
"""

_TOPICS = """\
## Topic configs

Set when a topic is created, or later, by any Kafka tool. A config that a topic does not set itself comes from the
broker setting beside it.
"""

_GROUPS = """\
## Group configs

Set for one group with `rayka configs set --group GROUP NAME=VALUE`, or with any Kafka tool, also before the group
exists. A config that a group does not set itself comes from the broker setting beside it; the broker's
`group.*.min.*` and `group.*.max.*` settings bound it.
"""

_LEFT_ASIDE = """\
## Kafka's settings that rayka ignores

A `server.properties` with these settings is accepted, but they have no effect. A pattern such as
`remote.*` stands for the settings that are not in the tables above.
"""

_OWN_CONFIG = ("Config", "Type", "Default", "Valid", "Broker setting", "Meaning")


def render(broker: Mapping[str, ConfigDef] = BROKER_CONFIGS) -> str:
    """The page, in Markdown."""
    return "\n".join(_lines(broker))


def _lines(broker: Mapping[str, ConfigDef]) -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Broker settings\n"
    for title, group in groupby(broker.values(), key=lambda definition: definition.group):
        yield f"### {title}\n"
        yield from _table(("Setting", "Type", "Default", "Valid", "Change", "Meaning"), map(_broker_row, group))
    yield _TOPICS
    public = (definition for definition in TOPIC_CONFIGS.values() if not definition.name.startswith("internal."))
    yield from _table(_OWN_CONFIG, map(_topic_row, public))
    yield _GROUPS
    yield from _table(_OWN_CONFIG, map(_group_row, GROUP_CONFIGS.values()))
    yield _LEFT_ASIDE
    for reason, patterns in IGNORED_CONFIGS.items():
        yield f"- {reason} {', '.join(f'`{pattern}`' for pattern in patterns)}"
    yield ""


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _row(titles)
    yield _row(("---",) * len(titles))
    yield from map(_row, rows)
    yield ""


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _broker_row(definition: ConfigDef) -> tuple[str, ...]:
    return (*_start(definition), definition.update_mode.value, definition.doc)


def _topic_row(definition: ConfigDef) -> tuple[str, ...]:
    synonyms = ", ".join(f"`{synonym.name}`" for synonym in definition.synonyms)
    return (*_start(definition), synonyms, definition.doc)


def _group_row(definition: ConfigDef) -> tuple[str, ...]:
    synonym = broker_synonym(definition.name)
    return (*_start(definition), f"`{synonym}`" if synonym else "", definition.doc)


def _start(definition: ConfigDef) -> tuple[str, ...]:
    return f"`{definition.name}`", definition.type.name.lower(), _default(definition), _valid(definition)


def _default(definition: ConfigDef) -> str:
    match definition.default:
        case None:
            return "none"
        case "":
            return "empty"
    return f"{definition.default}{_readable(definition)}"


def _readable(definition: ConfigDef) -> str:
    """A number of ms or bytes in larger units, where it has any."""
    if definition.type not in (ConfigType.INT, ConfigType.LONG) or definition.default is None:
        return ""
    value = int(definition.default)
    if value in (INT_MAX, LONG_MAX):
        return " (no limit)"
    if value >= 1000 and definition.name.endswith(".ms"):
        return f" ({_scaled(value, _TIMES)})"
    if value >= 1024 and definition.name.endswith(".bytes"):
        return f" ({_scaled(value, _SIZES)})"
    return ""


_TIMES = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def _scaled(value: int, units: tuple[tuple[str, int], ...]) -> str:
    unit, size = next((unit, size) for unit, size in units if value >= size)
    count = f"{value / size:.4g}"
    return f"{count} {unit.removesuffix('s') if count == '1' else unit}"


def _valid(definition: ConfigDef) -> str:
    if definition.valid_values:
        return ", ".join(definition.valid_values)
    if definition.lower is None and definition.upper is None:
        return ""
    if definition.upper is None:
        return f"at least {definition.lower}"
    return f"{definition.lower} to {definition.upper}"
