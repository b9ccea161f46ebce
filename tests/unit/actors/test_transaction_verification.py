"""What a commit of offsets asks of transaction coordinators, and what it makes of their answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from rayka.actors.coordinator.outside import Verified
from rayka.actors.coordinator.transactions import TransactionLinks
from rayka.config import BrokerConfig
from rayka.coordinator.groups.requests import TxnOffsetCommitRequest
from rayka.coordinator.transactions.requests import AddPartitionsRequest, AddPartitionsResponse
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition, TransactionSupport, VerificationRequest
from tests.unit.actors.test_coordinator_log import open_partition

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)


class Coordinators:
    """Answers each producer epoch when told to."""

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[AddPartitionsResponse]] = {}

    async def execute(self, request: AddPartitionsRequest) -> AddPartitionsResponse:
        self.answers[request.producer_epoch] = asyncio.get_running_loop().create_future()
        return await self.answers[request.producer_epoch]


def test_a_zombie_that_commits_offsets_takes_nothing_from_its_successor(tmp_path: Path) -> None:
    async def check_both() -> None:
        partition, _ = open_partition(tmp_path)
        coordinators = Coordinators()
        nobody = cast(Any, None)
        links = TransactionLinks(cast(Any, coordinators), nobody, lambda: BrokerConfig.parse({}), nobody)

        def ask(epoch: int) -> asyncio.Task[Verified]:
            request = TxnOffsetCommitRequest("g", (), "t", 5, epoch, TransactionSupport.ADD_PARTITIONS)
            return asyncio.ensure_future(links.verified(partition, request))

        zombie, successor = ask(0), ask(1)
        while len(coordinators.answers) < 2:
            await asyncio.sleep(0)
        coordinators.answers[0].set_result(AddPartitionsResponse((ErrorCode.PRODUCER_FENCED,)))
        assert (await zombie)[0] is ErrorCode.INVALID_PRODUCER_EPOCH
        coordinators.answers[1].set_result(AddPartitionsResponse((ErrorCode.NONE,)))
        error, verification = await successor
        assert error is ErrorCode.NONE
        assert partition.log.begin_verification(5, 1, 0, 0) is verification, "its commit is appended"

    asyncio.run(asyncio.wait_for(check_both(), 60))


class Answering:
    """A coordinator that answers with these errors, or raises."""

    def __init__(self, answer: tuple[ErrorCode, ...] | Exception) -> None:
        self.answer = answer
        self.asked: list[AddPartitionsRequest] = []

    async def execute(self, request: AddPartitionsRequest) -> AddPartitionsResponse:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return AddPartitionsResponse(self.answer)

    def links(self, **config: str) -> TransactionLinks:
        """The way to it."""
        nobody = cast(Any, None)
        return TransactionLinks(cast(Any, self), nobody, lambda: BrokerConfig.parse(config), nobody)

    def verify(self, support: TransactionSupport, **config: str) -> list[ErrorCode]:
        """What it says of two partitions."""
        asking = self.links(**config).verify(VerificationRequest("t", 5, 1, (ORDERS, PAYMENTS), support))
        return [*asyncio.run(asyncio.wait_for(asking, 60))]


@pytest.mark.parametrize("support", [TransactionSupport.VERIFY, TransactionSupport.ADD_PARTITIONS])
def test_partitions_of_older_clients_are_verified_and_those_of_newer_ones_added(support: TransactionSupport) -> None:
    coordinator = Answering((ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE))
    assert coordinator.verify(support) == [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE]
    (asked,) = coordinator.asked
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("t", 5, 1)
    assert (asked.partitions, asked.transaction_version) == ((ORDERS, PAYMENTS), 2)
    assert asked.is_verify_only is (support is TransactionSupport.VERIFY)


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_verification_without_an_answer_is_an_error_of_each_partition(error: ErrorCode) -> None:
    assert Answering(RaykaError(error)).verify(TransactionSupport.VERIFY) == [error] * 2
    assert Answering(TimeoutError()).verify(TransactionSupport.VERIFY) == [ErrorCode.REQUEST_TIMED_OUT] * 2


def test_without_verification_no_coordinator_is_asked_of_older_clients() -> None:
    unasked = {"transaction.partition.verification.enable": "false"}
    coordinator = Answering((ErrorCode.INVALID_TXN_STATE,) * 2)
    assert coordinator.verify(TransactionSupport.VERIFY, **unasked) == [ErrorCode.NONE] * 2
    assert coordinator.asked == []
    assert coordinator.verify(TransactionSupport.ADD_PARTITIONS, **unasked) == [ErrorCode.INVALID_TXN_STATE] * 2


@pytest.mark.parametrize(
    ("error", "verifying", "adding"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, None),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING, None),
    ],
)
def test_a_group_coordinator_answers_in_its_own_errors(
    tmp_path: Path, error: ErrorCode, verifying: ErrorCode, adding: ErrorCode | None
) -> None:
    """As Kafka does. `adding` is the answer to newer clients if it is another one."""
    expected = {TransactionSupport.VERIFY: verifying, TransactionSupport.ADD_PARTITIONS: adding or verifying}

    async def check_all() -> None:
        partition, _ = open_partition(tmp_path)
        for support, answer in expected.items():
            request = TxnOffsetCommitRequest("g", (), "t", 5, 0, support)
            assert (await Answering((error,)).links().verified(partition, request))[0] is answer

    asyncio.run(asyncio.wait_for(check_all(), 60))


@pytest.mark.parametrize("error", [ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_COORDINATOR])
def test_a_producer_that_is_refused_for_good_is_verified_anew(tmp_path: Path, error: ErrorCode) -> None:
    """What is left of one that may try again, it finds."""

    async def check_it() -> None:
        partition, _ = open_partition(tmp_path)
        request = TxnOffsetCommitRequest("g", (), "t", 5, 1, TransactionSupport.VERIFY)
        _, verification = await Answering((error,)).links().verified(partition, request)
        again = partition.log.begin_verification(5, 1, 0, 0)
        assert (again is verification) is error.retriable

    asyncio.run(asyncio.wait_for(check_it(), 60))
