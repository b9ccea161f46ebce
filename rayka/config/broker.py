"""The settings of a broker, parsed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from rayka.config.broker_settings import BROKER_CONFIGS
from rayka.config.definition import UpdateMode
from rayka.config.groups import broken_group_rules
from rayka.config.ignored import reason_ignored
from rayka.config.listeners import Endpoint, client_listeners
from rayka.config.log import LogConfig
from rayka.config.remote import STORE_URL, SYSTEM_ENABLE
from rayka.config.unused import UNUSED_CONFIGS
from rayka.errors import ErrorCode, RaykaError


class BrokerConfig(Mapping[str, Any]):
    """Typed broker settings by name: `config["socket.request.max.bytes"]`.

    `static` holds the texts that the broker was started with, `texts` these with what was changed at run time
    over them. `ignored` are the names of Kafka's that rayka does not honour, `unknown` those that Kafka
    does not know either: both have no effect; `warnings` says so.
    """

    def __init__(self, static: Mapping[str, str], dynamic: Mapping[str, str] | None = None) -> None:
        """Raises INVALID_CONFIG for a value of the wrong type, out of bounds, or in conflict with another."""
        self.static = dict(static)
        self.texts = {**static, **(dynamic or {})}
        unused = sorted(name for name in self.texts if name not in BROKER_CONFIGS or name in UNUSED_CONFIGS)
        self.ignored = tuple(name for name in unused if name in UNUSED_CONFIGS or reason_ignored(name))
        self.unknown = tuple(name for name in unused if name not in self.ignored)
        self._values = {
            name: definition.parse(self.texts[name]) if name in self.texts else definition.default_value
            for name, definition in BROKER_CONFIGS.items()
        }
        self._check()

    def warnings(self) -> list[str]:
        """A sentence about each setting that was given without effect, except those that rayka lists as not in use."""
        found = []
        for name in self.unknown:
            close = difflib.get_close_matches(name, BROKER_CONFIGS, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            found.append(f"{name} is not a broker setting and has no effect{hint}")
        by_reason: dict[str, list[str]] = {}
        for name in self.ignored:
            if reason := reason_ignored(name):
                by_reason.setdefault(reason, []).append(name)
        return found + [f"without effect: {', '.join(names)}. {reason}" for reason, names in by_reason.items()]

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """Read the settings that a broker is started with. Raises INVALID_CONFIG."""
        config = cls(texts)
        config.log_config({})
        return config

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def with_dynamic(self, dynamic: Mapping[str, str]) -> BrokerConfig:
        """The settings as they were at the start, with these over them. Raises INVALID_CONFIG."""
        return BrokerConfig(self.static, dynamic)

    def log_config(self, topic: Mapping[str, str]) -> LogConfig:
        """The configs of the logs of a topic that has these configs of its own. Raises INVALID_CONFIG."""
        return LogConfig.resolve(self.texts, topic)

    @property
    def broker_id(self) -> int:
        """The id asked for, -1 if the controller is to choose."""
        node_id: int = self["node.id"]
        broker_id: int = self["broker.id"]
        return broker_id if node_id < 0 else node_id

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The log directories."""
        directories: tuple[str, ...] = self["log.dirs"] or self["log.dir"]
        return directories

    @property
    def listeners(self) -> tuple[Endpoint, ...]:
        """Where the broker listens for clients."""
        return client_listeners("listeners", self["listeners"], self.texts)

    @property
    def advertised_listeners(self) -> tuple[Endpoint, ...]:
        """The addresses that clients are given."""
        items = self["advertised.listeners"]
        return client_listeners("advertised.listeners", items, self.texts) if items else self.listeners

    def _check(self) -> None:
        for failed, message in self._rules():
            if failed:
                raise RaykaError(ErrorCode.INVALID_CONFIG, message)

    def _rules(self) -> Iterator[tuple[bool, str]]:
        queued, largest = self["queued.max.request.bytes"], self["socket.request.max.bytes"]
        yield (
            0 < queued < largest,
            f"queued.max.request.bytes ({queued}) must be larger or equal to socket.request.max.bytes ({largest})",
        )
        ids = {self["node.id"], self["broker.id"]} - {-1}
        yield len(ids) > 1, f"node.id ({self['node.id']}) and broker.id ({self['broker.id']}) must be equal"
        yield not self.listeners, "listeners must name at least one address for clients"
        advertised = self.advertised_listeners if self["advertised.listeners"] else ()
        yield (
            any(listener.host == "0.0.0.0" for listener in advertised),
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.",
        )
        authorizer = self.texts.get("authorizer.class.name")
        yield bool(authorizer), f"authorizer.class.name is {authorizer}, but rayka does not serve ACLs yet"
        yield (
            self[SYSTEM_ENABLE] and not self[STORE_URL],
            f"{SYSTEM_ENABLE} needs {STORE_URL}: file:///DIRECTORY or s3://BUCKET/PREFIX",
        )
        yield not self.log_dirs, "log.dirs or log.dir must name at least one directory"
        for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
            yield self[name] == 0, f"{name} must be unlimited (-1) or, greater than or equal to 1"
        yield from ((True, message) for message in broken_group_rules(self))


def check_broker_configs(configs: Mapping[str, str], static: Mapping[str, str], *, per_broker: bool) -> None:
    """Raises unless these can be the dynamic settings of a broker (or, without `per_broker`, of all) that was
    started with `static`: INVALID_REQUEST for one that can't be changed at run time, else INVALID_CONFIG."""
    for name in configs:
        definition = BROKER_CONFIGS.get(name)
        if definition is None:
            raise RaykaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
        if definition.read_only:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{name}]")
        if definition.update_mode is UpdateMode.PER_BROKER and not per_broker:
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]",
            )
    BrokerConfig(static, configs).log_config({})
