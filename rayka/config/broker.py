"""The settings of a broker, parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rayka.config.broker_settings import BROKER_CONFIGS
from rayka.config.definition import ConfigValue
from rayka.config.log import LogConfig
from rayka.errors import ErrorCode, RaykaError


class BrokerConfig(Mapping[str, Any]):
    """Typed broker settings by name: `config["socket.request.max.bytes"]`.

    `texts` holds what was given, `unknown` the names among it that rayka does not honour.
    """

    def __init__(self, texts: Mapping[str, str], values: Mapping[str, ConfigValue]) -> None:
        self.texts = dict(texts)
        self.unknown = tuple(sorted(name for name in texts if name not in BROKER_CONFIGS))
        self._values = dict(values)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """Read settings; names that rayka does not know are kept aside in `unknown`, as Kafka does.

        Raises INVALID_CONFIG for a value of the wrong type, out of bounds, or at odds with another.
        """
        values = {
            name: definition.parse(texts[name]) if name in texts else definition.default_value
            for name, definition in BROKER_CONFIGS.items()
        }
        config = cls(texts, values)
        config._check()
        return config

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[object, tuple[dict[str, str]]]:
        return BrokerConfig.parse, (self.texts,)

    def with_dynamic(self, dynamic: Mapping[str, str]) -> BrokerConfig:
        """The settings with those that were changed at run time over them. Raises INVALID_CONFIG."""
        return BrokerConfig.parse({**self.texts, **dynamic}) if dynamic else self

    def log_config(self, topic: Mapping[str, str]) -> LogConfig:
        """The configs of the logs of a topic that has these configs of its own. Raises INVALID_CONFIG."""
        return LogConfig.resolve(self.texts, topic)

    @property
    def broker_id(self) -> int:
        """The id asked for, -1 if the controller is to choose."""
        node_id: int = self["node.id"]
        return self["broker.id"] if node_id < 0 else node_id

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The log directories."""
        return self["log.dirs"] or self["log.dir"]

    def _check(self) -> None:
        for failed, message in self._rules():
            if failed:
                raise RaykaError(ErrorCode.INVALID_CONFIG, message)

    def _rules(self) -> Iterator[tuple[bool, str]]:
        queued, largest = self["queued.max.request.bytes"], self["socket.request.max.bytes"]
        yield (
            0 < queued < largest,
            f"queued.max.request.bytes ({queued}) must not be less than socket.request.max.bytes ({largest})",
        )
        ids = {self["node.id"], self["broker.id"]} - {-1}
        yield len(ids) > 1, f"node.id ({self['node.id']}) and broker.id ({self['broker.id']}) must be equal"
        yield not self.log_dirs, "log.dirs or log.dir must name at least one directory"
        for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
            yield self[name] == 0, f"{name} must be unlimited (-1) or at least 1"
