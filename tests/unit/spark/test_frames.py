"""The frames of a batch that its function gives to sinks, each of which is written once when the batch comes again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.frames import Frames


def test_frames_of_a_table_are_numbered_in_their_order() -> None:
    frames, numbers = Frames(), []
    for place in ("clicks", "clicks", "errors", "clicks"):
        with frames.next(place) as number:
            numbers.append(number)
    assert numbers == [0, 1, 0, 2]


def test_after_a_failed_frame_the_next_one_is_refused() -> None:
    frames = Frames()
    with pytest.raises(OSError, match="full"), frames.next("clicks"):
        raise OSError("the disk is full")
    with pytest.raises(RaykaError, match="let the batch fail") as refused, frames.next("clicks"):
        pass
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    with frames.next("errors") as number:
        assert number == 0


def test_frames_of_two_threads_are_refused() -> None:
    frames = Frames()
    with frames.next("clicks"):
        pass

    def write() -> None:
        with frames.next("clicks"):
            pass

    with ThreadPoolExecutor(1) as pool, pytest.raises(RaykaError, match="Two threads"):
        pool.submit(write).result()


def test_a_thread_with_the_id_of_an_earlier_one_is_told_from_it() -> None:
    frames, refused = Frames(), []

    def write() -> None:
        try:
            with frames.next("clicks"):
                pass
        except RaykaError as error:
            refused.append(error.code)

    for _ in range(2):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert refused == [ErrorCode.INVALID_REQUEST]


def test_after_a_frame_that_could_not_be_made_the_next_one_is_refused() -> None:
    frames = Frames()
    with pytest.raises(OSError, match="full"), frames.attempt("the path"):
        raise OSError("the disk is full")
    with pytest.raises(RaykaError, match="let the batch fail"), frames.attempt("the path"), frames.next("clicks"):
        pass


def test_a_second_frame_is_refused_and_not_skipped() -> None:
    frames = Frames()
    with pytest.raises(OSError, match="full"), frames.only("pages"):
        raise OSError("the disk is full")
    for place in ("pages", "clicks"):
        with frames.only(place):
            pass
    with pytest.raises(RaykaError, match="A frame of this batch is in pages") as refused, frames.only("pages"):
        pass
    with pytest.raises(RaykaError, match="is in users"), frames.only("users"), frames.only("users"):
        pass
    assert refused.value.code is ErrorCode.INVALID_REQUEST
