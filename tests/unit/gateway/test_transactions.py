"""Which partitions a client may add to its transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import SECOND, create, make, run
from tests.unit.gateway.asking_groups import ask
from tests.unit.gateway.wire_client import WireClient

ADD, INIT = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.INIT_PRODUCER_ID


@pytest.mark.parametrize("version", [0, 3])
def test_a_client_gets_no_markers_into_internal_topics(version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("orders", 1, 1), NewTopic("__transaction_state", 3, 1))
        begun = await ask(
            client, INIT, 4, transactional_id="t", transaction_timeout=SECOND, producer_id=-1, producer_epoch=-1
        )

        async def add(*topics: str) -> list[int]:
            asked = tuple(make(ADD, version, "AddPartitionsToTxnTopic", name=name, partitions=(0,)) for name in topics)
            response = await ask(
                client, ADD, version,
                v3_and_below_transactional_id="t", v3_and_below_producer_id=begun.producer_id,
                v3_and_below_producer_epoch=begun.producer_epoch, v3_and_below_topics=asked,
            )  # fmt: skip
            results = response.results_by_topic_v3_and_below
            return [result.results_by_partition[0].partition_error_code for result in results]

        refused, left_out = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await add("orders", "__transaction_state") == [left_out, refused]
        assert broker.transactions.core.transactions["t"].partitions == frozenset()
        assert await add("orders") == [ErrorCode.NONE]

    run(tmp_path, check)
