"""The features whose levels a cluster can change while it runs (KIP-584), as far as rayka has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import FeatureUpdate, UpgradeType
from rayka.metadata.records import FeatureLevelRecord


class SupportedFeature(NamedTuple):
    """The levels that this software can have; level 0 means that the feature is off."""

    min_level: int
    max_level: int


TRANSACTION_VERSION: Final = "transaction.version"
"""2: every transaction has an epoch of its own, and producing to a partition adds it to the transaction (KIP-890)."""

SHARE_VERSION: Final = "share.version"
"""1: share groups (KIP-932)."""

SUPPORTED_FEATURES: Final[Mapping[str, SupportedFeature]] = {
    TRANSACTION_VERSION: SupportedFeature(0, 2),
    SHARE_VERSION: SupportedFeature(0, 1),
}
NEW_CLUSTER_FEATURES: Final[Mapping[str, int]] = {
    name: feature.max_level for name, feature in SUPPORTED_FEATURES.items()
}


def update_features(features: Mapping[str, int], updates: Iterable[FeatureUpdate]) -> tuple[FeatureLevelRecord, ...]:
    """The records for all updates. Raises INVALID_UPDATE_VERSION, or INVALID_REQUEST if a feature is named twice."""
    levels: dict[str, int] = {}
    for update in updates:
        if update.feature in levels:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"{update.feature} is named more than once")
        _check(update, features.get(update.feature, 0))
        levels[update.feature] = update.level
    return tuple(FeatureLevelRecord(name, level) for name, level in levels.items() if features.get(name, 0) != level)


def _check(update: FeatureUpdate, current: int) -> None:
    supported = SUPPORTED_FEATURES.get(update.feature)
    reason = None
    if supported is None:
        reason = "The controller does not support this feature."
    elif not supported.min_level <= update.level <= supported.max_level:
        reason = f"The levels that are supported are {supported.min_level} to {supported.max_level}."
    elif update.upgrade_type not in tuple(UpgradeType):
        reason = "The controller does not support the given upgrade type."
    elif update.upgrade_type == UpgradeType.UPGRADE and update.level < current:
        reason = "Can't downgrade the version of this feature without setting the upgrade type to a downgrade."
    elif update.upgrade_type != UpgradeType.UPGRADE and update.level > current:
        reason = "Can't downgrade to a newer version."
    if reason is not None:
        message = f"Invalid update version {update.level} for feature {update.feature}. {reason}"
        raise RaykaError(ErrorCode.INVALID_UPDATE_VERSION, message)
