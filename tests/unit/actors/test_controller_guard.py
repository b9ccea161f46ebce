"""The guard of the controller goes on while Ray's GCS is away, and tells only what is so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import ray
import ray.exceptions

from rayka.actors.controller.guard import ControllerGuard


class Handle:
    """A controller that dies at once, and does not answer."""

    def __getattr__(self, method: str) -> Handle:
        return self

    def remote(self) -> Handle:
        return self


class Forgotten(Handle):
    """A controller that Ray does not know any more; Ray raises nothing more special then."""

    def remote(self) -> Handle:
        raise Exception("actor handle was not found")


def timed_out() -> Handle:
    raise ray.exceptions.GetTimeoutError("the GCS may be down")


def nobody() -> Handle:
    raise ValueError("no actor has this name")


@pytest.mark.parametrize(
    "looks",
    [[timed_out, nobody], [Handle, timed_out, Handle, nobody, nobody], [Forgotten, Handle, nobody, nobody]],
)
def test_the_loss_of_the_controller_is_told_also_after_the_gcs_was_away(
    looks: list[Callable[[], Handle]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise ray.exceptions.ActorUnavailableError("it is away", None)

    following: Iterator[Callable[[], Handle]] = iter(looks)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: next(following)())
    monkeypatch.setattr(ray, "get", unavailable)
    losses, threads = list[str](), list[str]()

    def lost(text: str) -> None:
        threads.append(threading.current_thread().name)
        losses.append(text)
        ended.set()

    ended = threading.Event()
    guard = ControllerGuard("rayka", report=lambda _: None, lost=lost)
    guard.start()
    assert ended.wait(30), "the guard has ended without a word"
    assert losses == ["the controller is gone: no rayka broker runs in namespace 'rayka' of this Ray cluster"]
    assert threads[0].startswith("rayka-"), "a thread of another name may start a Ray cluster"
