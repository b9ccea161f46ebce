"""The features whose levels a cluster can change while it runs (KIP-584), as far as rayka has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


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
