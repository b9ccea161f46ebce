"""What the handlers need from the rest of the broker: protocols that `rayka.actors` implements.

A method that returns a `Future` is on the hot path: it has sent its request when it returns, and the
caller attaches a callback instead of a task.
"""

from __future__ import annotations

import uuid
from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from rayka.config import BrokerConfig
from rayka.coordinator.request import Request
from rayka.errors import ErrorCode
from rayka.metadata.commands import (
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    FeatureUpdate,
    NewPartitions,
    NewTopic,
    TopicResult,
)
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.share.requests import InFlightRecords, ShareDepth, ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import (
    ActiveProducers,
    AppendParams,
    AppendRequest,
    AppendResult,
    DeleteRecordsResult,
    EpochEndOffset,
    EpochQuery,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    LogDirDescription,
    OffsetAnswer,
    OffsetQuery,
    OpenedJournal,
    TopicPartition,
    TxnMarker,
)

R = TypeVar("R")


class Partitions(Protocol):
    """The partition leaders. Errors of single partitions are in the results, in request order."""

    def append(self, requests: Sequence[AppendRequest], params: AppendParams) -> Future[list[AppendResult]]:
        """Send the batches on to their leaders, in order, before returning. Never raises."""

    def fetch(
        self,
        partitions: Sequence[FetchPartition],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: IsolationLevel,
    ) -> Future[list[FetchResult]]:
        """Read up to `max_bytes` over all partitions; wait for `min_bytes`, at most `max_wait_ms`. Never raises.

        An error of any partition ends the wait. Cancelling the future ends it too.
        """

    def process_of(self, topic_partition: TopicPartition) -> str | None:
        """Where another process of this node, which leads the partition, takes connections; None if there is none."""

    def are_on_this_node(self, topic_partitions: Sequence[TopicPartition]) -> bool:
        """Whether all leaders are on this node; another node sends records as bytes instead of file locations."""

    def channel_of(self, topic_partition: TopicPartition) -> tuple[str, int] | None:
        """The path of the leader's local channel and the leader epoch; None unless the leader is another process of
        this node. From any thread."""

    async def list_offsets(self, queries: Sequence[OffsetQuery], isolation: IsolationLevel) -> list[OffsetAnswer]:
        """Find offsets by timestamp or by `OffsetSpec`."""

    async def epoch_end_offsets(self, queries: Sequence[EpochQuery]) -> list[EpochEndOffset]:
        """Find where leader epochs ended (KIP-101)."""

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, DeleteRecordsResult]:
        """Move log start offsets up; -1 stands for the high watermark."""

    async def write_txn_marker(self, marker: TxnMarker) -> list[ErrorCode]:
        """Write the end of a transaction to its partitions; an error for each, NONE when it is durable."""

    async def describe_producers(self, partitions: Sequence[TopicPartition]) -> list[ActiveProducers]:
        """What partitions remember of their producers (KIP-664)."""

    async def open_journal(
        self, topic_partition: TopicPartition, topic_id: bytes, producer_id: int, *, is_large: bool = False
    ) -> OpenedJournal:
        """Let the leader make a put journal, which a program of this node writes to (`rayka.storage.journal`).

        `topic_id` is 16 bytes; the producer id is used for nothing else. `is_large`: for large records. Raises
        RaykaError.
        """

    async def drain_journals(self, topic_partition: TopicPartition) -> None:
        """Let the leader append what is in the put journals of the partition. Raises RaykaError."""

    def check_records(self, records: FileSlice) -> None:
        """Let the leader read records that could not be read here: an error of its disk takes the directory offline."""

    async def describe_log_dirs(self) -> list[LogDirDescription]:
        """The log directories of this node with every replica in them."""


class ControllerPort(Protocol):
    """The cluster's controller. A method may raise `RaykaError`, for example when the controller is unavailable."""

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        """Create topics; when it returns their leaders serve and `Broker.image` has them."""

    async def delete_topics(self, topics: Sequence[str | uuid.UUID], timeout_ms: int) -> list[TopicResult]:
        """Delete topics by name or by id."""

    async def create_partitions(
        self, requests: Sequence[NewPartitions], validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        """Increase the number of partitions of topics."""

    async def incremental_alter_configs(
        self, alterations: Sequence[ConfigAlteration], validate_only: bool
    ) -> list[ConfigResult]:
        """Set, delete, append to or subtract from single settings (KIP-339)."""

    async def alter_configs(self, replacements: Sequence[ConfigReplacement], validate_only: bool) -> list[ConfigResult]:
        """Replace all dynamic settings of resources."""

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool, timeout_ms: int) -> None:
        """Change the levels of features: all, or with an error none."""

    async def allocate_producer_id(self) -> int:
        """A new producer id, which no producer has had."""


class Groups(Protocol):
    """The group coordinators, wherever they are."""

    async def coordinator_of(self, group_id: str) -> BrokerImage:
        """The node of the group's coordinator; the offsets topic is created when it is first needed.

        Raises COORDINATOR_NOT_AVAILABLE while there is none.
        """

    async def execute(self, request: Request[R]) -> R:
        """Carry out a request of `coordinator.groups` at its coordinator. A join or sync waits for the group.

        Raises COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
        """

    async def execute_all(self, request: Request[R], node_id: int | None = None) -> list[R]:
        """Carry out a request at every coordinator of the cluster, or of one node: one response each.

        Errors as `execute`.
        """

    def partition_of(self, group_id: str) -> int:
        """The partition of the offsets topic that the group hashes to; groups of one partition share a coordinator."""


class ShareLeaders(Protocol):
    """The share-partitions, on the leaders of their partitions (KIP-932)."""

    async def fetch(
        self,
        params: ShareFetchParams,
        partitions: Sequence[ShareFetchPartition],
        acknowledged: dict[int, ShareFetchResult] | None = None,
    ) -> tuple[int, list[ShareFetchResult]]:
        """Acknowledge and acquire records. Returns the lock duration of the group in milliseconds, and the results in
        request order. Never raises.

        `acknowledged` gets the result of each acknowledgement, by its place in the request, as soon as its leader has
        answered: who cancels the fetch then knows which are still to be sent.
        """

    async def end_session(
        self,
        group_id: str,
        member_id: str,
        topic_partitions: Sequence[TopicPartition],
        *,
        is_lost: bool,
        session_id: str = "",
    ) -> None:
        """Give back what a member holds in these partitions, because it has left or its connection was lost.

        Nothing is given back if the member reads there in a session with another id by now.

        Never raises: what can't be given back now comes back when its locks expire.
        """

    async def depth(self, group_id: str, topic_partition: TopicPartition, topic_id: bytes) -> ShareDepth:
        """How much the group could acquire from a partition. Raises COORDINATOR_NOT_AVAILABLE while the group's state
        is not loaded, or was never initialized, and what else the leader answers."""

    async def records(self, group_id: str, topic_partition: TopicPartition) -> tuple[InFlightRecords, ...] | None:
        """What the group has in flight in a partition; None while no leader has it in memory. Never raises."""

    async def is_read(self, group_id: str, topic_partitions: Sequence[TopicPartition]) -> bool:
        """Whether somebody reads the group at a leader of the partitions, also without being a member, as a queue does.

        Partitions without a leader don't count. Raises COORDINATOR_NOT_AVAILABLE if a leader does not answer soon, and
        no other one is read from. Leaders that are not read from forget what they know of the group.
        """

    async def give_back(
        self,
        group_id: str,
        member_id: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        offsets: Sequence[tuple[int, int]],
    ) -> None:
        """Give back records that a member acquired and did not deliver to its program: that is not a delivery.

        Never raises: what can't be given back now comes back when its locks expire.
        """


class Shares(Protocol):
    """The share coordinators, wherever they are. A key is that of a share-partition (`coordinator.shares.keys`)."""

    async def coordinator_of(self, coordinator_key: str) -> BrokerImage:
        """The node of the coordinator; the state topic is created when it is first needed.

        Raises COORDINATOR_NOT_AVAILABLE while there is none.
        """

    async def execute(self, request: Request[R]) -> R:
        """Carry out a request of `coordinator.shares.requests` at its coordinator.

        Raises COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
        """


class Broker(Protocol):
    """What a handler gets: this node, the current image of the cluster, and access to the rest."""

    @property
    def node_id(self) -> int:
        """This node's broker id."""

    @property
    def image(self) -> MetadataImage:
        """The newest image this process knows."""

    @property
    def config(self) -> BrokerConfig:
        """This broker's settings, dynamic ones included."""

    @property
    def partitions(self) -> Partitions:
        """The partition leaders."""

    @property
    def controller(self) -> ControllerPort:
        """The controller."""

    @property
    def groups(self) -> Groups:
        """The group coordinators."""

    @property
    def share_leaders(self) -> ShareLeaders:
        """The share-partitions."""

    @property
    def shares(self) -> Shares:
        """The share coordinators."""

    @property
    def transactions(self) -> Groups:
        """The transaction coordinators, by transactional id instead of group id."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
