"""ApiVersions 0-5: what this gateway serves, from the table.

A version above ours is answered in the form of version 0 with UNSUPPORTED_VERSION and the row of
ApiVersions alone, so that the client can ask again (KIP-511). The response header is always version 0:
the client does not know yet what we speak.
"""

from __future__ import annotations

import re

from rayka.errors import ErrorCode
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.ports import Broker
from rayka.gateway.server.context import Context
from rayka.gateway.server.request import Api, PendingRequest, finish_frame, response_head
from rayka.gateway.wire.reader import FrameReader
from rayka.gateway.wire.schema import ApiKey, ResponseTypes, schema
from rayka.metadata.features import SUPPORTED_FEATURES
from rayka.metadata.image import MetadataImage

_FIRST_WITH_FEATURES = 3
# Clients of before version 4 take level 0 for an error (KIP-1014), so it is not told.
_LEAST_LEVEL = 1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: Context, pending: PendingRequest) -> None:
    """Answer at once."""
    api = pending.api
    served = api.min_version <= pending.version <= api.max_version
    version = pending.version if served else 0
    messages = schema(ApiKey.API_VERSIONS, version)
    error, rows = ErrorCode.UNSUPPORTED_VERSION, [api]
    if served:
        request = messages.read(FrameReader(pending.frame, pending.position))
        error = _fault(request, context.broker)
        rows = list(context.apis.values()) if error == ErrorCode.NONE else []
    out = response_head(pending.correlation_id, flexible=False)
    messages.write(out, _response(messages.types, version, error, rows, context.broker.image))
    pending.answer(finish_frame(out))


def _fault(request: object, broker: Broker) -> ErrorCode:
    """What is wrong with the client's name (KIP-511) or with whom it thinks we are (KIP-1242)."""
    for name in ("client_software_name", "client_software_version"):
        if not _SOFTWARE.fullmatch(getattr(request, name, "unknown")):
            return ErrorCode.INVALID_REQUEST
    cluster_id = getattr(request, "cluster_id", None)
    node_id = getattr(request, "node_id", -1)
    if cluster_id is not None and cluster_id != broker.image.cluster_id:
        return ErrorCode.REBOOTSTRAP_REQUIRED
    if cluster_id is not None and node_id != -1 and node_id not in broker.image.brokers:
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE


def _supported(image: MetadataImage, version: int) -> list[tuple[str, int]]:
    """The highest level of each feature; one that is finalized and unknown to us keeps its level."""
    if version < _FIRST_WITH_FEATURES:
        return []
    known = {name: feature.max_level for name, feature in SUPPORTED_FEATURES.items()}
    return sorted({**image.features, **known}.items())


def _response(types: ResponseTypes, version: int, error: ErrorCode, rows: list[Api], image: MetadataImage) -> object:
    """Features are reported as the cluster finalized them (KIP-584)."""
    features = sorted(image.features.items()) if version >= _FIRST_WITH_FEATURES else []
    return types.ApiVersionsResponse(
        error_code=error,
        api_keys=tuple(
            types.ApiVersion(api_key=row.key, min_version=row.min_version, max_version=row.max_version)
            for row in sorted(rows, key=lambda row: row.key)
        ),
        throttle_time=NO_THROTTLE,
        supported_features=tuple(
            types.SupportedFeatureKey(name=name, min_version=_LEAST_LEVEL, max_version=level)
            for name, level in _supported(image, version)
        ),
        finalized_features_epoch=image.version if features else -1,
        finalized_features=tuple(
            types.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features
        ),
    )
