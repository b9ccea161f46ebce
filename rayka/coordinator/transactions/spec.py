"""The transaction coordinator as the shell, the router and the codec see it."""

from __future__ import annotations

from rayka.coordinator.spec import CoordinatorConfigs, CoordinatorSpec
from rayka.coordinator.transactions.coordinator import TransactionCoordinator
from rayka.coordinator.transactions.records import decode, encode
from rayka.coordinator.transactions.requests import (
    AddPartitionsRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    MarkersWrittenRequest,
)
from rayka.coordinator.transactions.settings import TransactionSettings

TRANSACTION_STATE_TOPIC = "__transaction_state"


def _create(configs: CoordinatorConfigs) -> TransactionCoordinator:
    return TransactionCoordinator(TransactionSettings.parse(configs.broker))


TRANSACTIONS: CoordinatorSpec[TransactionCoordinator] = CoordinatorSpec(
    name="transaction",
    topic=TRANSACTION_STATE_TOPIC,
    num_partitions_config="transaction.state.log.num.partitions",
    create=_create,
    encode=encode,
    decode=decode,
    commands={
        InitProducerIdRequest: TransactionCoordinator.init_producer_id,
        AddPartitionsRequest: TransactionCoordinator.add_partitions,
        EndTxnRequest: TransactionCoordinator.end_txn,
        MarkersWrittenRequest: TransactionCoordinator.markers_written,
    },
    queries={
        ListTransactionsRequest: TransactionCoordinator.list_transactions,
        DescribeTransactionRequest: TransactionCoordinator.describe_transaction,
    },
    take_effects=TransactionCoordinator.take_markers,
)
