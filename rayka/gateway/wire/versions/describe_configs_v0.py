"""DescribeConfigs 0: says only whether a value is the default, not where it comes from."""

import datetime

from rayka.gateway.wire.versions.definition import message, of


@message(32, 0)
class DescribeConfigsResource:
    """A resource and the settings wanted, null for all."""

    resource_type: int = of("int8")
    resource_name: str = of("string")
    configuration_keys: tuple[str, ...] | None = of("string")


@message(32, 0)
class DescribeConfigsRequest:
    """The resources."""

    resources: tuple[DescribeConfigsResource, ...]


@message(32, 0)
class DescribeConfigsResourceResult:
    """A setting."""

    name: str = of("string")
    value: str | None = of("string")
    read_only: bool = of("bool")
    is_default: bool = of("bool")
    is_sensitive: bool = of("bool")


@message(32, 0)
class DescribeConfigsResult:
    """A resource's settings."""

    error_code: int = of("error_code")
    error_message: str | None = of("string")
    resource_type: int = of("int8")
    resource_name: str = of("string")
    configs: tuple[DescribeConfigsResourceResult, ...]


@message(32, 0)
class DescribeConfigsResponse:
    """The answer."""

    throttle_time: datetime.timedelta = of("timedelta_i32")
    results: tuple[DescribeConfigsResult, ...]
