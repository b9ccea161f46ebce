"""Produce 0-13. Requests of a connection overlap: the leaders keep their order.

Record bytes stay where they were received; the leader stamps offsets into them. Versions 0-2 carry message sets of
magic 0 and 1, which become record batches first: these requests do not overlap, because that is done in a thread. From
version 13 on topics are named by id (KIP-516). Record errors are in versions 8 and later (KIP-467).
"""

from __future__ import annotations

from asyncio import Future
from functools import partial
from typing import Final

from rayka.errors import ErrorCode
from rayka.gateway.handlers.produce.request import ProduceRequest, parse, record_fault
from rayka.gateway.handlers.produce.response import FIRST_WITH_LOG_START, encode, result_position
from rayka.gateway.handlers.produce.template import ProduceTemplate
from rayka.gateway.handlers.produce.up_conversion import convert, needs_conversion
from rayka.gateway.server.context import Context
from rayka.gateway.server.request import PendingRequest
from rayka.metadata.image import MetadataImage
from rayka.types import NO_LEADER_EPOCH, AppendRequest, AppendResult

_ACKS: Final = (-1, 0, 1)


def handle(context: Context, pending: PendingRequest) -> None:
    """Send the batches on to their leaders before returning; respond when the leaders have answered.

    A client that writes to one partition repeats its request except for the records. `ProduceTemplate` then replaces
    decoding and encoding; every other request takes the general path.
    """
    template = None if pending.connection.lost_batches else pending.connection.produce_template
    records = template.match(pending, context.broker.image) if template else None
    if template is None or records is None or record_fault(records, pending.version, template.params) is not None:
        _append_decoded(context, pending)
    else:
        _append_templated(context, pending, template, records)


def _append_templated(
    context: Context, pending: PendingRequest, template: ProduceTemplate, records: memoryview
) -> None:
    context.busy_poll.request_came(len(records))
    pending.connection.affinity.follow_process(template.process)
    appends = [AppendRequest(template.topic_partition, records, NO_LEADER_EPOCH, template.topic_id)]
    image = context.broker.image
    future = context.broker.partitions.append(appends, template.params)
    if future.done():
        _respond_templated(context, pending, template, image, future)
    else:
        future.add_done_callback(partial(_respond_templated, context, pending, template, image))


def _respond_templated(
    context: Context,
    pending: PendingRequest,
    template: ProduceTemplate,
    image: MetadataImage,
    future: Future[list[AppendResult]],
) -> None:
    has_lost = bool(pending.connection.lost_batches)
    if not has_lost and not future.cancelled() and not (result := future.result()[0]).error:
        pending.answer_in_parts((template.response(pending.correlation_id, result),))
        context.busy_poll.answered()
    elif not pending.connection.closed:
        _appended(context, pending, parse(pending, image), future)


def _append_decoded(context: Context, pending: PendingRequest) -> None:
    request = parse(pending, context.broker.image)
    _refuse(request)
    if needs_conversion(request):
        convert(context, pending, request, partial(_append, context, pending, request))
    else:
        _append(context, pending, request)


def _append(context: Context, pending: PendingRequest, request: ProduceRequest) -> None:
    _hold_back(context, pending, request)
    if not request.appends:
        _respond(context, pending, request, [])
        return
    pending.connection.affinity.follow([append.topic_partition for append in request.appends])
    future = context.broker.partitions.append(request.appends, request.params)
    if future.done():
        _respond(context, pending, request, future.result())
    else:
        future.add_done_callback(partial(_appended, context, pending, request))


def _refuse(request: ProduceRequest) -> None:
    """Fail a request that is refused as a whole."""
    acks = request.params.acks
    if acks not in _ACKS:
        request.fail_all(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks} is not -1, 0 or 1")
    elif any(fault.error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED for fault in request.faults.values()):
        request.fail_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def _hold_back(context: Context, pending: PendingRequest, request: ProduceRequest) -> None:
    """Refuse batches that come after one that did not reach its leader."""
    lost = pending.connection.lost_batches
    if not lost:
        return
    now_s = context.loop.time()
    places = list(zip(request.indexes, request.appends, strict=True))
    held_back = {index for index, append in places if lost.holds_back(append, now_s)}
    request.faults |= {index: lost.refusal() for index in held_back}
    request.appends = [append for index, append in places if index not in held_back]
    request.indexes = [index for index, _ in places if index not in held_back]


def _appended(
    context: Context, pending: PendingRequest, request: ProduceRequest, future: Future[list[AppendResult]]
) -> None:
    if future.cancelled():
        pending.refuse("the append was cancelled")
    else:
        _respond(context, pending, request, future.result())


def _respond(context: Context, pending: PendingRequest, request: ProduceRequest, appended: list[AppendResult]) -> None:
    results = request.faults
    settle, now_s = pending.connection.lost_batches.settle, context.loop.time()
    for index, append, result in zip(request.indexes, request.appends, appended, strict=True):
        results[index] = settle(append, result, now_s)
    if request.params.acks == 0:
        _end_unanswered(pending, request, results)
        return
    image = context.broker.image
    response = encode(request, results, version=pending.version, correlation_id=pending.correlation_id, image=image)
    if request.is_for_one_partition and not results[0].error and pending.version >= FIRST_WITH_LOG_START:
        _keep_template(context, pending, request, response)
    pending.answer(response)


def _end_unanswered(pending: PendingRequest, request: ProduceRequest, results: dict[int, AppendResult]) -> None:
    """With acks=0 closing the connection is the only way to report an error, as in Kafka."""
    failed = next((index for index, result in results.items() if result.error), None)
    if failed is None:
        pending.answer(None)
    else:
        error = ErrorCode(results[failed].error).name
        pending.refuse(f"acks=0 append to {request.partitions[failed]}: {error}")


def _keep_template(context: Context, pending: PendingRequest, request: ProduceRequest, response: bytearray) -> None:
    """The next request of this connection may be for the same partition.

    It is valid under the metadata that has named the topic: by the time of the answer another one may have the name.
    """
    topic_partition, *_, topic_id = request.appends[0]
    pending.connection.produce_template = ProduceTemplate(
        bytes(memoryview(pending.frame)[pending.position : request.size_position]),
        request.image,
        pending.version,
        topic_partition,
        topic_id,
        context.broker.partitions.process_of(topic_partition),
        request.params,
        response,
        result_position(request.topics[0][0], pending.version),
    )
