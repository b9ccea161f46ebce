"""What the shell of transaction and group coordinators does when a flush fails or a coordinator resigns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from rayka.actors.coordinator.outside import Outside, Verified
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.coordinator.transactions import TransactionLinks
from rayka.config import BrokerConfig, LogConfig
from rayka.coordinator.groups.requests import CommittedOffset, ListGroupsRequest, TxnOffsetCommitRequest
from rayka.coordinator.groups.spec import GROUPS
from rayka.coordinator.request import Request, TransactionalRequest
from rayka.coordinator.spec import CoordinatorSpec
from rayka.coordinator.transactions.requests import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    MarkersWrittenRequest,
)
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.types import TopicPartition, TransactionSupport
from tests.unit.actors.test_coordinator_log import FewDescriptors, open_partition

ORDERS = TopicPartition("orders", 0)


class Running:
    """A coordinator in this process; what it wants written is noted, and counts as written."""

    def __init__(self, path: Path, spec: CoordinatorSpec[Any]) -> None:
        self.files = FewDescriptors()
        self.partition, self.server = open_partition(path, self.files, LogConfig(flush_messages=1))
        self.runtime = CoordinatorRuntime(spec, self.server, BrokerConfig.parse({}), 1)
        self.runtime.outside = Outside(self.verified, self.perform)
        self.performed: list[TransactionMarkers] = []

    async def verified(self, partition: Partition, request: TransactionalRequest[Any]) -> Verified:
        return ErrorCode.NONE, None

    async def perform(self, markers: TransactionMarkers, leader_epoch: int) -> Request[Any]:
        self.performed.append(markers)
        return MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch)

    async def start(self, query: Request[Any]) -> None:
        self.runtime.leads(self.partition)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        while isinstance(answer := await self.send(query), RaykaError) and answer.code is loading:
            await asyncio.sleep(0)

    def send(self, request: Request[Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.runtime.execute(0, request, future.set_result)
        return future


def check(path: Path, spec: CoordinatorSpec[Any], test: Callable[[Running], Awaitable[None]]) -> None:
    async def run() -> None:
        running = Running(path, spec)
        async with asyncio.timeout(20):
            await test(running)
        running.runtime.resign()
        await running.server.stop()

    asyncio.run(run())


def test_markers_are_written_though_the_flush_of_the_outcome_fails_at_first(tmp_path: Path) -> None:
    """The outcome is in the log, and nobody else would ask for the markers before the coordinator loads again."""

    async def end(running: Running) -> None:
        await running.start(ListTransactionsRequest())
        producer = await running.send(InitProducerIdRequest("t", 60_000, new_producer_id=5))
        await running.send(AddPartitionsRequest("t", producer.producer_id, producer.producer_epoch, (ORDERS,)))
        running.files.lacks = True
        refusal = await running.send(EndTxnRequest("t", producer.producer_id, producer.producer_epoch, True))
        assert isinstance(refusal, RaykaError)
        running.files.lacks = False
        async with asyncio.timeout(10):
            while not running.performed:
                running.server.flush([running.partition])
                await asyncio.sleep(0.01)
        (markers,) = running.performed
        assert (markers.is_committed, markers.partitions) == (True, (ORDERS,))

    check(tmp_path, TRANSACTIONS, end)


def test_a_commit_of_offsets_is_answered_by_a_coordinator_that_resigns_at_once(tmp_path: Path) -> None:
    async def resign(running: Running) -> None:
        await running.start(ListGroupsRequest())
        offsets = (CommittedOffset("orders", 0, 7),)
        committing = running.send(TxnOffsetCommitRequest("g", offsets, "t", 5, 0, TransactionSupport.ADD_PARTITIONS))
        running.runtime.leaves(0)
        answer = await asyncio.wait_for(committing, 5)
        assert isinstance(answer, RaykaError)
        assert answer.code is ErrorCode.NOT_COORDINATOR

    check(tmp_path, GROUPS, resign)


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
        links = TransactionLinks(cast(Any, coordinators), cast(Any, None), lambda: BrokerConfig.parse({}))

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

    asyncio.run(asyncio.wait_for(check_both(), 20))
