"""Sends requests to a partition actor on another node, by actor calls.

Record bytes travel as arguments and results: a fetch gets bytes instead of a place in a file. Control parts are the
same checked msgpack as on the local channel.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Hashable, Sequence
from typing import Any

from rayka.actors.channel.channel_link import append_frame
from rayka.actors.channel.link import CALL_TIMEOUT_S, GRACE_S, AppendDone, Done, FetchDone
from rayka.actors.channel.requests import (
    NUMBERS,
    FetchParams,
    LeaderRequest,
    decode_answer,
    decode_failure,
    encode_value,
)
from rayka.actors.channel.socket import ChannelClosed, give
from rayka.actors.named import find_actor
from rayka.errors import RaykaError
from rayka.types import AppendParams, AppendRequest


class ActorLeaderClient:
    """Requests to one partition actor through its handle; calls start in the order in which they were made.

    `node_id` is that of this process, as Ray has it.
    """

    is_in_process = False

    def __init__(self, actor_name: str, namespace: str, node_id: str) -> None:
        self._actor_name = actor_name
        self._namespace = namespace
        self._node_id = node_id
        self._handle: Any = None
        self._keys = itertools.count(1)
        self._pending: dict[Hashable, tuple[asyncio.Task[None] | asyncio.Handle, Done]] = {}

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """As `LeaderClient.append`."""
        frame, payload = append_frame(requests, params)
        self._submit(frame, b"".join(payload), done, params.timeout_ms / 1000 + GRACE_S)

    def fetch(self, params: FetchParams, done: FetchDone) -> Hashable:
        """As `LeaderClient.fetch`; the results hold the records' bytes."""
        return self._submit(params, b"", done, params.max_wait_s + GRACE_S)

    def cancel(self, key: Hashable) -> None:
        """As `LeaderClient.cancel`; the leader waits until its own time is over."""
        waiting, _ = self._pending.pop(key, (None, None))
        if waiting is not None:
            waiting.cancel()

    def ask(self, request: LeaderRequest, done: Done, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """As `LeaderClient.ask`."""
        self._submit(request, b"", done, timeout_s)

    def close(self) -> None:
        """As `LeaderClient.close`."""
        pending, self._pending = self._pending, {}
        for waiting, done in pending.values():
            waiting.cancel()
            give(done, ChannelClosed(f"no answer from {self._actor_name}", sent=True))

    def _submit(self, request: Any, payload: bytes, done: Done, timeout_s: float) -> Hashable:
        key = next(self._keys)
        number = NUMBERS[type(request)]
        failure: ChannelClosed | RaykaError
        try:
            control = encode_value(request)
            if self._handle is None:
                self._handle = find_actor(self._actor_name, self._namespace, self._node_id)
            reference = self._handle.serve.remote(number, control, payload)
        except RaykaError as error:
            failure = error
        except Exception as error:  # Ray raises nothing more special for an actor that it does not know any more
            self._handle = None
            failure = ChannelClosed(str(error), sent=False)
        else:
            self._pending[key] = asyncio.ensure_future(self._await(key, reference, number, timeout_s)), done
            return key
        self._pending[key] = asyncio.get_running_loop().call_soon(self._end, key, failure), done
        return key

    async def _await(self, key: Hashable, reference: Any, number: int, timeout_s: float) -> None:
        answer: Any
        try:
            failed, control = await asyncio.wait_for(reference, timeout_s)
            answer = decode_failure(control) if failed else decode_answer(number, control)
        except TimeoutError:
            answer = ChannelClosed(f"{self._actor_name} did not answer in time", sent=True)
        except RaykaError as error:
            answer = error
        except Exception as error:  # a RayError, or one of its answer, which can't be read
            self._handle = None
            answer = ChannelClosed(f"{self._actor_name}: {error}", sent=True)
        self._end(key, answer)

    def _end(self, key: Hashable, answer: Any) -> None:
        """Give the answer, unless the request has ended: up to Python 3.11, `wait_for` may return when cancelled."""
        _, done = self._pending.pop(key, (None, None))
        if done is not None:
            give(done, answer)
