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


def test_behind_a_frame_that_has_failed_no_other_takes_its_number() -> None:
    frames = Frames()
    with pytest.raises(OSError, match="full"), frames.next("clicks"):
        raise OSError("the disk is full")
    with pytest.raises(RaykaError, match="let the batch fail") as refused, frames.next("clicks"):
        pass
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    with frames.next("errors") as number:
        assert number == 0


def test_threads_whose_order_is_a_matter_of_chance_are_refused() -> None:
    frames = Frames()
    with frames.next("clicks"):
        pass

    def write() -> None:
        with frames.next("clicks"):
            pass

    with ThreadPoolExecutor(1) as pool, pytest.raises(RaykaError, match="Two threads"):
        pool.submit(write).result()


def test_a_thread_that_gets_the_id_of_an_earlier_one_is_another() -> None:
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


def test_behind_a_frame_that_could_not_be_made_no_other_takes_its_number() -> None:
    frames = Frames()
    with pytest.raises(OSError, match="full"), frames.attempt("the path"):
        raise OSError("the disk is full")
    with pytest.raises(RaykaError, match="let the batch fail"), frames.attempt("the path"), frames.next("clicks"):
        pass


def test_a_second_frame_is_refused_before_its_rows_are_left_out() -> None:
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
