"""One setting: its name, type, default and bounds, and how its text is read.

Names, types, defaults, bounds and the wording of errors are Kafka 4.4's, so that tools and people that
know Kafka find what they expect.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rayka.errors import ErrorCode, RaykaError

ConfigValue = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(enum.IntEnum):
    """The type of a setting, with the numbers that DescribeConfigs uses (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(enum.Enum):
    """How a broker setting can be changed, in Kafka's words (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = ConfigType
READ_ONLY, PER_BROKER, CLUSTER_WIDE = UpdateMode


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that a topic config takes its default from; `factor` converts its unit."""

    name: str
    factor: int = 1

    def convert(self, definition: ConfigDef, text: str) -> ConfigValue:
        """The topic config's value from the broker setting's text. Raises INVALID_CONFIG.

        For a time without limit the broker takes any negative number, the topic config -1 only.
        """
        value = definition.read(text)
        if isinstance(value, int) and not isinstance(value, bool):
            value = -1 if value < 0 and definition.lower == -1 else value * self.factor
        return definition.checked(value)


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """A setting. `default` is the text that would be written in a file, None if there is no value.

    `valid_values` bounds a string, or each item of a list. `check` returns what is wrong with a value that
    has the right type, in words that complete "Invalid value x for configuration y: ". For a topic config
    `synonyms` are the broker settings that it falls back to, first the strongest.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    lower: int | float | None = None
    upper: int | float | None = None
    valid_values: tuple[str, ...] = ()
    check: Callable[[ConfigValue], str | None] | None = None
    importance: str = "medium"
    update_mode: UpdateMode = READ_ONLY
    sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()
    group: str = ""

    @property
    def read_only(self) -> bool:
        """Whether the setting only changes with a restart of the broker."""
        return self.update_mode is UpdateMode.READ_ONLY

    def parse(self, text: str | None) -> ConfigValue:
        """The typed value of a text. Raises INVALID_CONFIG with the name, the value and the reason."""
        if text is None:
            if self.default is None:
                return None
            raise self.invalid(None, "entry must not be null")
        return self.checked(self.read(text))

    def read(self, text: str) -> ConfigValue:
        """The typed value of a text, whatever its bounds. Raises INVALID_CONFIG."""
        if self.type is ConfigType.PASSWORD:
            return text
        trimmed = text.strip()
        if self.type is ConfigType.BOOLEAN:
            return self._read_boolean(text)
        if self.type is ConfigType.LIST:
            return tuple(item.strip() for item in trimmed.split(",")) if trimmed else ()
        if self.type in _INTEGER_RANGE:
            return self._read_integer(trimmed)
        if self.type is ConfigType.DOUBLE:
            return self._read_double(trimmed)
        return trimmed

    def checked(self, value: ConfigValue) -> ConfigValue:
        """The value, if it lies within the bounds. Raises INVALID_CONFIG."""
        if isinstance(value, tuple):
            self._check_items(value)
        reason = self._out_of_bounds(value) or (self.check(value) if self.check else None)
        if reason:
            raise self.invalid(_shown(value), reason)
        return value

    @property
    def default_value(self) -> ConfigValue:
        """The default, typed."""
        return None if self.default is None else self.parse(self.default)

    def invalid(self, value: object, reason: str) -> RaykaError:
        """The error for a bad value, worded as Kafka's."""
        shown = "null" if value is None else "[hidden]" if self.sensitive else value
        return RaykaError(ErrorCode.INVALID_CONFIG, f"Invalid value {shown} for configuration {self.name}: {reason}")

    def _read_boolean(self, text: str) -> bool:
        match text.strip().lower():
            case "true":
                return True
            case "false":
                return False
        raise self.invalid(text, "Expected value to be either true or false")

    def _read_integer(self, text: str) -> int:
        low, high = _INTEGER_RANGE[self.type]
        digits = text[1:] if text[:1] in ("-", "+") else text
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
        if not (is_number and low <= int(text) <= high):
            raise self.invalid(text, f"Not a number of type {self.type.name}")
        return int(text)

    def _read_double(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise self.invalid(text, f"Not a number of type {self.type.name}") from None

    def _out_of_bounds(self, value: ConfigValue) -> str | None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._out_of_range(value)
        if not self.valid_values or isinstance(value, tuple) or value in self.valid_values:
            return None
        return f"String must be one of: {', '.join(self.valid_values)}"

    def _out_of_range(self, value: int | float) -> str | None:
        if self.lower is not None and not value >= self.lower:
            return f"Value must be at least {self.lower}"
        if self.upper is not None and not value <= self.upper:
            return f"Value must be no more than {self.upper}"
        return None

    def _check_items(self, items: tuple[str, ...]) -> None:
        if "" in items:
            raise RaykaError(ErrorCode.INVALID_CONFIG, f"Configuration '{self.name}' values must not be empty.")
        for item in items:
            if self.valid_values and item not in self.valid_values:
                raise self.invalid(item, f"String must be one of: {', '.join(self.valid_values)}")


_INTEGER_RANGE: Mapping[ConfigType, tuple[int, int]] = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}
_MOST_DIGITS = 100  # Python reads no more than some thousand


def _shown(value: ConfigValue) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(configs: Mapping[str, ConfigDef], name: str, text: str | None) -> ConfigValue:
    """The typed value of one setting. Raises INVALID_CONFIG, also for an unknown name."""
    definition = configs.get(name)
    if definition is None:
        raise RaykaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    return definition.parse(text)


def int_config(
    name: str, default: int, doc: str, lower: int | None = 1, upper: int | None = None, importance: str = "medium"
) -> ConfigDef:
    """A setting that is an int, and at least 1 unless it says otherwise."""
    return ConfigDef(name, INT, str(default), doc, lower=lower, upper=upper, importance=importance)


def values_of(configs: Mapping[str, ConfigValue], definitions: Mapping[str, ConfigDef]) -> Callable[[str], Any]:
    """Gives typed values by name: what `configs` has, else the default."""
    return lambda name: configs[name] if name in configs else definitions[name].default_value
