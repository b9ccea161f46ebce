"""UpdateFeatures 0-2: the levels of the cluster's features (KIP-584). All are changed, or with an error none."""

from __future__ import annotations

from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE, message_of, milliseconds
from rayka.gateway.server.request import Call
from rayka.metadata.commands import FeatureUpdate, UpgradeType


async def handle(call: Call) -> Any:
    """Change levels."""
    error, message = ErrorCode.NONE, None
    try:
        await call.broker.controller.update_features(
            [_update(one) for one in call.request.feature_updates],
            call.field("validate_only", False),
            milliseconds(call.request.timeout),
        )
    except RaykaError as refusal:
        error, message = refusal.code, refusal.message
    return call.types.UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=message_of(error, message),
        results=tuple(_result(call, one.feature, error, message) for one in call.request.feature_updates),
    )


def _update(one: Any) -> FeatureUpdate:
    """Version 0 has a flag instead of the type."""
    may_downgrade = getattr(one, "allow_downgrade", False)
    upgrade_type = UpgradeType.SAFE_DOWNGRADE if may_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(one.feature, one.max_version_level, getattr(one, "upgrade_type", upgrade_type))


def _result(call: Call, feature: str, error: ErrorCode, message: str | None) -> Any:
    return call.types.UpdatableFeatureResult(
        feature=feature, error_code=error, error_message=message_of(error, message)
    )
