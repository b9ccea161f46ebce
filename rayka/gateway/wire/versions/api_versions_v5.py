"""ApiVersions 5: the client may say whom it thinks it talks to (KIP-1242). The response is that of 4."""

import datetime

from rayka.gateway.wire.versions.definition import message, of, tagged


@message(18, 5, flexible=True)
class ApiVersionsRequest:
    """The client's name and version; the cluster and node that it meant to reach."""

    client_software_name: str = of("string")
    client_software_version: str = of("string")
    cluster_id: str | None = of("string", default=None)
    node_id: int = of("int32", default=-1)


@message(18, 5, flexible=True)
class ApiVersion:
    """An API and the versions of it that are served."""

    api_key: int = of("int16")
    min_version: int = of("int16")
    max_version: int = of("int16")


@message(18, 5, flexible=True)
class SupportedFeatureKey:
    """A feature and the levels of it that are supported (KIP-584)."""

    name: str = of("string")
    min_version: int = of("int16")
    max_version: int = of("int16")


@message(18, 5, flexible=True)
class FinalizedFeatureKey:
    """A feature and the levels of it that are in force."""

    name: str = of("string")
    max_version_level: int = of("int16")
    min_version_level: int = of("int16")


@message(18, 5, flexible=True)
class ApiVersionsResponse:
    """The answer."""

    error_code: int = of("error_code")
    api_keys: tuple[ApiVersion, ...]
    throttle_time: datetime.timedelta = of("timedelta_i32")
    supported_features: tuple[SupportedFeatureKey, ...] = tagged(0, ())
    finalized_features_epoch: int = of("int64", tag=1, default=-1)
    finalized_features: tuple[FinalizedFeatureKey, ...] = tagged(2, ())
    zk_migration_ready: bool = of("bool", tag=3, default=False)
