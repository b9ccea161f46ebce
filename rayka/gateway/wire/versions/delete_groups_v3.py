"""DeleteGroups 3: says why a group could not be deleted."""

import datetime

from rayka.gateway.wire.versions.definition import message, of


@message(42, 3, flexible=True)
class DeleteGroupsRequest:
    """The groups."""

    groups_names: tuple[str, ...] = of("string", default=())


@message(42, 3, flexible=True)
class DeletableGroupResult:
    """What became of one group."""

    group_id: str = of("string")
    error_code: int = of("error_code")
    error_message: str | None = of("string", default=None)


@message(42, 3, flexible=True)
class DeleteGroupsResponse:
    """The answer."""

    throttle_time: datetime.timedelta = of("timedelta_i32")
    results: tuple[DeletableGroupResult, ...]
