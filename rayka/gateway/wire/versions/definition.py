"""The form of kio's generated classes, for messages declared by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast, dataclass_transform

from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as ResponseHeaderV0
from kio.schema.response_header.v1.header import ResponseHeader as ResponseHeaderV1
from kio.static.constants import EntityType
from kio.static.primitive import i16

Cls = TypeVar("Cls", bound=type)

_API_VERSIONS = 18
_RESPONSES = ("sResponse", "EpochResponse", "CommitResponse", "FetchResponse")
_HEADERS: dict[tuple[EntityType, bool], Any] = {
    (EntityType.request, False): RequestHeaderV1,
    (EntityType.request, True): RequestHeaderV2,
    (EntityType.response, False): ResponseHeaderV0,
    (EntityType.response, True): ResponseHeaderV1,
}


def of(kafka_type: str, **options: Any) -> Any:
    """A field of a Kafka type; `default` and `tag` as options."""
    metadata: dict[str, Any] = {"kafka_type": kafka_type}
    if "tag" in options:
        metadata["tag"] = options.pop("tag")
    return dataclasses.field(metadata=metadata, **options)


def tagged(tag: int, default: Any) -> Any:
    """An entity or an array of entities in a tagged field."""
    return dataclasses.field(metadata={"tag": tag}, default=default)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(key: int, version: int, *, flexible: bool = False) -> Callable[[Cls], Cls]:
    """Make a frozen dataclass with the attributes that readers and writers of messages look for.

    A class whose name ends in Request or Response is a whole message, any other is nested in one.
    """

    def declare(cls: Cls) -> Cls:
        kind = _kind(cls.__name__)
        attributes: dict[str, Any] = {
            "__type__": kind,
            "__version__": i16(version),
            "__flexible__": flexible,
            "__api_key__": i16(key),
        }
        if kind is not EntityType.nested:
            # ApiVersions responses have header 0 in every version (KIP-511).
            flexible_header = flexible and not (key == _API_VERSIONS and kind is EntityType.response)
            attributes["__header_schema__"] = _HEADERS[kind, flexible_header]
        for name, value in attributes.items():
            setattr(cls, name, value)
        return cast(Cls, dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls))

    return declare


def _kind(name: str) -> EntityType:
    if name.endswith("Request"):
        return EntityType.request
    return EntityType.response if name.endswith(_RESPONSES) else EntityType.nested
