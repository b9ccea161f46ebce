"""UpdateFeatures in every version, as Kafka's FeatureCommand asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import SECOND, make, run
from tests.unit.gateway.wire_client import WireClient

KEY = ApiKey.UPDATE_FEATURES
NAME = "transaction.version"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_levels_go_up_and_with_permission_down(version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        async def update(level: int, down: bool = False, **how: Any) -> int:
            one = make(
                KEY, version, "FeatureUpdateKey",
                feature=how.get("feature", NAME), max_version_level=level, upgrade_type=2 if down else 1,
                allow_downgrade=down,
            )  # fmt: skip
            request = make(
                KEY, version, "UpdateFeaturesRequest",
                timeout=SECOND, feature_updates=(one,), validate_only=how.get("validate_only", False),
            )  # fmt: skip
            code: int = (await client.call(KEY, version, request)).error_code
            return code

        refused = ErrorCode.INVALID_UPDATE_VERSION
        assert await update(1) == ErrorCode.NONE
        assert broker.image.features == {NAME: 1}
        assert await update(2) == ErrorCode.NONE
        assert await update(1) == refused
        assert await update(3) == refused
        assert await update(1, feature="nonsense.version") == refused
        assert broker.image.features == {NAME: 2}
        if version >= 1:
            assert await update(1, down=True, validate_only=True) == ErrorCode.NONE
            assert broker.image.features == {NAME: 2}
        assert await update(0, down=True) == ErrorCode.NONE
        assert broker.image.features == {}
        assert await update(2, down=True) == refused

    run(tmp_path, check)
