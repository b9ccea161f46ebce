"""A coordinator and a partition take over transactions that Apache Kafka wrote: committed, aborted, and still open."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayka.actors.channel.requests import WriteTxnMarkers
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.coordinator.transactions import TransactionLinks
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig, LogConfig
from rayka.coordinator.transactions.requests import (
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.types import TopicPartition, TxnMarker

DATA = Path(__file__).parents[2] / "data" / "kafka-transactions"
STATE, EVENTS = TopicPartition("__transaction_state", 0), TopicPartition("events", 0)
OPEN_SINCE, END = 16, 20


class Broker:
    """Both partitions of a copy of Kafka's directory, led here, and the coordinator."""

    def __init__(self, path: Path) -> None:
        directory = LogDirectory.open(str(path), RealFiles(), now_ms=0)
        replicas = Replicas()
        self.state, self.events = (self._lead(directory, replicas, each) for each in (STATE, EVENTS))
        self.server = ReplicaServer(replicas, directory, DiskThread())
        self.runtime = CoordinatorRuntime(TRANSACTIONS, self.server, BrokerConfig.parse({}), 1)
        nothing: Any = None
        links = TransactionLinks(nothing, self, lambda: BrokerConfig.parse({}), nothing)  # type: ignore[arg-type]
        self.runtime.outside = links

    def _lead(self, directory: LogDirectory, replicas: Replicas, at: TopicPartition) -> Partition:
        partition = Partition(directory.open_log(at, None, LogConfig(retention_ms=-1), now_ms=0), uuid.uuid4())
        partition.become_leader(1)
        replicas.add(partition)
        return partition

    def locate(self, at: TopicPartition) -> tuple[str, int]:
        """As `Router.locate`."""
        return "here", 1

    async def write_txn_marker(self, marker: TxnMarker) -> list[ErrorCode]:
        """As `Router.write_txn_marker`."""
        (errors,) = await self._answer(lambda done: self.server.ask(WriteTxnMarkers((marker,)), done))
        return [ErrorCode(error) for error in errors]

    async def ask(self, request: Any) -> Any:
        """The coordinator's response."""
        return await self._answer(lambda done: self.runtime.execute(0, request, done))

    async def _answer(self, send: Callable[[Callable[[Any], None]], None]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        send(future.set_result)
        return await future

    async def states(self) -> dict[str, str]:
        """By transactional id, once the coordinator has loaded."""
        while isinstance(answer := await self.ask(ListTransactionsRequest()), RaykaError):
            await asyncio.sleep(0.01)
        found: ListTransactionsResponse = answer
        return {one.transactional_id: one.state for one in found.transactions}


def check(tmp_path: Path, test: Callable[[Broker], Any]) -> None:
    shutil.copytree(DATA, tmp_path / "data")

    async def run() -> None:
        broker = Broker(tmp_path / "data")
        async with asyncio.timeout(20):
            await test(broker)
        broker.runtime.resign()
        await broker.server.stop()

    asyncio.run(run())


def described() -> dict[str, str]:
    """What Kafka's own tool said: the state of each transactional id."""
    lines = [line.split() for line in (DATA / "described.txt").read_text().splitlines()]
    return {line[0]: line[3] for line in lines if len(line) == 4 and line[0] in ("committed", "aborted", "open")}


def test_a_partition_knows_what_is_decided(tmp_path: Path) -> None:
    """Readers of committed records end before the open transaction, and leave the aborted ones out."""

    async def look(broker: Broker) -> None:
        log = broker.events.log
        assert (log.last_stable_offset, log.log_end_offset) == (OPEN_SINCE, END)
        log.update_high_watermark(END)
        records = log.read(0, 1 << 20, log.last_stable_offset)
        aborted = [(one.producer_id, one.first_offset) for one in log.aborted_transactions(0, records)]
        assert aborted == [(1, 8), (1, 12)]

    check(tmp_path, look)


def test_a_coordinator_ends_what_was_left_open_and_goes_on(tmp_path: Path) -> None:
    """The open transaction is older than its timeout. The producers' next epochs follow those that Kafka gave."""

    async def go_on(broker: Broker) -> None:
        broker.runtime.leads(broker.state)
        states = await broker.states()
        assert {name: state for name, state in states.items() if name != "open"} == {
            name: state for name, state in described().items() if name != "open"
        }
        while (await broker.states())["open"] != "CompleteAbort":
            await asyncio.sleep(0.01)
        assert broker.events.log.last_stable_offset == broker.events.log.log_end_offset == END + 1
        zombie = await broker.ask(EndTxnRequest("open", 2, 0, is_committed=True))
        assert zombie.error is ErrorCode.PRODUCER_FENCED
        for name, producer in (("committed", (0, 1)), ("open", (2, 2))):
            response = await broker.ask(InitProducerIdRequest(name, 60_000))
            assert (response.error, (response.producer_id, response.producer_epoch)) == (ErrorCode.NONE, producer)

    check(tmp_path, go_on)
