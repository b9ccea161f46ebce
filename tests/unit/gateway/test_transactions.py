"""Transactions over the wire, in every version."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import SECOND, create, make, run
from tests.unit.gateway.asking_groups import ask
from tests.unit.gateway.wire_client import WireClient

ADD, INIT, COMMIT = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.TXN_OFFSET_COMMIT


def added(version: int, producer: Any, *, is_verify_only: bool = False) -> dict[str, Any]:
    """The fields of a request that adds partition 0 of `orders`, or asks whether it is there."""
    topics = (make(ADD, version, "AddPartitionsToTxnTopic", name="orders", partitions=(0,)),)
    if version < 4:
        who = {"transactional_id": "t", "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        return {f"v3_and_below_{name}": value for name, value in who.items()} | {"v3_and_below_topics": topics}
    transaction = make(
        ADD, version, "AddPartitionsToTxnTransaction",
        transactional_id="t", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
        verify_only=is_verify_only, topics=topics,
    )  # fmt: skip
    return {"transactions": (transaction,)}


def partition_errors(version: int, response: Any) -> list[int]:
    if version < 4:
        results = response.results_by_topic_v3_and_below
    else:
        (transaction,) = response.results_by_transaction
        results = transaction.topic_results
    return [one.partition_error_code for result in results for one in result.results_by_partition]


def offset_of_orders(version: int, topic_id: uuid.UUID) -> Any:
    """The topic of a request that commits offset 7 of `orders`."""
    partition = make(COMMIT, version, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=7,
                     committed_metadata="")  # fmt: skip
    return make(COMMIT, version, "TxnOffsetCommitRequestTopic", name="orders", topic_id=topic_id,
                partitions=(partition,))  # fmt: skip


@pytest.mark.parametrize("version", range(7))
def test_a_transaction_in_every_version(version: int, tmp_path: Path) -> None:
    """Offsets are committed with it, tools list and describe it, and its producer id and epoch come back from 5 on."""

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("orders", 1, 1))
        topic_id = broker.image.topics["orders"].topic_id
        begun = await ask(client, INIT, version, **begin("t"))
        assert begun.error_code == ErrorCode.NONE
        producer = {"transactional_id": "t", "producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        add = min(version, 5)
        if add >= 4:
            asked = await ask(client, ADD, add, **added(add, begun, is_verify_only=True))
            assert partition_errors(add, asked) == [ErrorCode.TRANSACTION_ABORTABLE]
        assert partition_errors(add, await ask(client, ADD, add, **added(add, begun))) == [ErrorCode.NONE]
        offsets = await ask(client, ApiKey.ADD_OFFSETS_TO_TXN, version, **producer, group_id="g")
        assert offsets.error_code == ErrorCode.NONE
        topic = offset_of_orders(version, topic_id)
        committed = await ask(client, COMMIT, version, **producer, group_id="g", topics=(topic,))
        assert [one.error_code for each in committed.topics for one in each.partitions] == [ErrorCode.NONE]
        listed = await ask(client, ApiKey.LIST_TRANSACTIONS, version, state_filters=(), producer_id_filters=())
        assert [one.transaction_state for one in listed.transaction_states] == ["Ongoing"]
        ended = await ask(client, ApiKey.END_TXN, version, **producer, committed=True)
        assert ended.error_code == ErrorCode.NONE
        if version >= 5:
            assert (ended.producer_id, ended.producer_epoch) == (begun.producer_id, begun.producer_epoch + 1)
        (described,) = (await ask(client, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("t",))).transaction_states
        assert described.transaction_state == "CompleteCommit"

    run(tmp_path, check)


@pytest.mark.parametrize("version", range(7))
def test_offsets_are_sent_again_to_a_coordinator_that_loads(version: int, tmp_path: Path) -> None:
    """An old client takes COORDINATOR_LOAD_IN_PROGRESS for final here (KAFKA-7296)."""

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("orders", 1, 1))
        topic = offset_of_orders(version, broker.image.topics["orders"].topic_id)
        producer = {"transactional_id": "t", "producer_id": 5, "producer_epoch": 0}
        broker.groups.failure = RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        refused = await ask(client, COMMIT, version, **producer, group_id="g", topics=(topic,))
        is_old = version < 2
        expected = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_old else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert [one.error_code for each in refused.topics for one in each.partitions] == [expected]

    run(tmp_path, check)


def begin(transactional_id: str | None, **fields: Any) -> dict[str, Any]:
    given = {
        "transactional_id": transactional_id,
        "transaction_timeout": SECOND,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return given | fields


def test_a_prepared_transaction_cannot_be_kept(tmp_path: Path) -> None:
    """As in Kafka 4.4, where KIP-939 is not complete."""

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("orders", 1, 1))
        kept = await ask(client, INIT, 6, **begin("t", keep_prepared_txn=True))
        assert (kept.error_code, kept.ongoing_txn_producer_id) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        two_phase = await ask(client, INIT, 6, **begin("t", enable2_pc=True))
        assert two_phase.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    run(tmp_path, check)


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


def test_the_producers_of_a_repeated_partition_are_described_once(tmp_path: Path) -> None:
    """Four bytes would become a row for each of its producers again."""
    key = ApiKey.DESCRIBE_PRODUCERS

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        topic = make(key, 0, "TopicRequest", name="a", partition_indexes=(1, 0, 1, 1))
        request = make(key, 0, "DescribeProducersRequest", topics=(topic, topic))
        (found,) = (await client.call(key, 0, request)).topics
        assert [partition.partition_index for partition in found.partitions] == [1, 0]

    run(tmp_path, check)
