"""The addresses of a broker, as Kafka writes them: `NAME://HOST:PORT`, several separated by commas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError

_LISTENER = re.compile(r"([A-Za-z0-9_-]+)://(?:\[([0-9a-fA-F:.%]+)\]|([^:/\[\]]*)):(\d{1,5})")


class Endpoint(NamedTuple):
    """One address; an empty `host` stands for all interfaces."""

    name: str
    host: str
    port: int


def client_listeners(setting: str, items: tuple[str, ...], texts: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The listeners for clients that the setting names, without those of Kafka's controller.

    Raises INVALID_CONFIG for one that can't be read, or that asks for encryption or authentication: nothing
    that was meant to be guarded is served in the open.
    """
    controllers = {name.strip() for name in texts.get("controller.listener.names", "").split(",")}
    listeners = [_parse(setting, item) for item in items]
    found = tuple(listener for listener in listeners if listener.name not in controllers)
    for listener in found:
        protocol = _protocol(listener.name, texts.get("listener.security.protocol.map", ""))
        if protocol != "PLAINTEXT":
            raise RaykaError(
                ErrorCode.INVALID_CONFIG,
                f"{setting}: listener {listener.name} uses {protocol}; rayka supports only PLAINTEXT",
            )
    return found


def _parse(setting: str, text: str) -> Endpoint:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[4]) > 65_535:
        raise RaykaError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {setting}: not of the form NAME://HOST:PORT",
        )
    return Endpoint(match[1], match[2] or match[3] or "", int(match[4]))


def _protocol(name: str, protocols: str) -> str:
    pairs = (pair.partition(":") for pair in protocols.split(",") if ":" in pair)
    return {key.strip(): value.strip() for key, _, value in pairs}.get(name, name)
