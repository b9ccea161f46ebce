"""The header of a request: API key, version, correlation id, client id."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rayka.gateway.server.request import Api, PendingRequest
from rayka.gateway.wire.reader import Frame, FrameReader, MalformedFrame
from rayka.gateway.wire.schema import ApiKey

if TYPE_CHECKING:
    from rayka.gateway.server.connection import ClientConnection

_FIXED = struct.Struct(">hhih")


def parse_header(connection: ClientConnection, apis: Mapping[int, Api], frame: Frame) -> PendingRequest | None:
    """Return the request with its body still to be read; None after refusing the connection.

    An API or a version that is not served closes the connection, as in Kafka, except for ApiVersions: it
    answers any version, so that a newer client learns what there is (KIP-511).
    """
    if len(frame) < _FIXED.size:
        connection.refuse(f"frame of {len(frame)} bytes", "header")
        return None
    key, version, correlation_id, client_id_size = _FIXED.unpack_from(frame)
    api = apis.get(key)
    if api is None:
        connection.refuse("the API is not served", f"api key {key} v{version}")
        return None
    served = api.min_version <= version <= api.max_version
    if not served and key != ApiKey.API_VERSIONS:
        connection.refuse("the version is not served", f"{api.key.title}({key}) v{version}")
        return None
    try:
        return _request(connection, api, version, correlation_id, client_id_size, frame, served)
    except MalformedFrame as error:
        connection.refuse(f"request header: {error}", f"{api.key.title}({key}) v{version}")
        return None


def _request(
    connection: ClientConnection,
    api: Api,
    version: int,
    correlation_id: int,
    client_id_size: int,
    frame: Frame,
    served: bool,
) -> PendingRequest:
    """Read the client id, which never has a compact length, and step over tagged fields."""
    position = _FIXED.size + max(client_id_size, 0)
    if client_id_size < -1 or position > len(frame):
        raise MalformedFrame(f"client id of {client_id_size} bytes")
    client_id = None
    if client_id_size >= 0:
        try:
            client_id = str(frame[_FIXED.size : position], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFrame("the client id is not UTF-8") from error
    request = PendingRequest(connection, api, version, correlation_id, client_id, frame)
    if served and version >= api.first_flexible:
        if position < len(frame) and frame[position] == 0:
            position += 1
        else:
            reader = FrameReader(frame, position)
            reader.skip_tags()
            position = reader.position
    request.position = position
    return request
