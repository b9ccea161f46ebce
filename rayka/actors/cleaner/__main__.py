"""The cleaner process: carries out the plans that come on standard input, and ends with the process that started it.

It serves nobody, so it may take its time, and what it has loaded and read goes with it.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import sys
import time
import traceback
from dataclasses import replace

from rayka.actors.cleaner.messages import CleaningEvent, CleaningFailure, CleaningRequest, receive, send
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.cleaner.cleaner import Cleaner
from rayka.storage.cleaner.plan import RoundEnd
from rayka.storage.cleaner.throttle import Throttle
from rayka.storage.files import RealFiles

_NICENESS = 5
_PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    """Let the system kill this process when its parent dies: a new owner of the directory must not meet it there."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started the cleaner is gone")


def _clean(request: CleaningRequest, secret: tuple[int, int]) -> None:
    limits = replace(request.limits, secret=secret)
    throttle = Throttle(limits.max_bytes_per_second, time.monotonic, time.sleep)
    for step in Cleaner(RealFiles(), request.plan, limits, throttle).clean():
        event = CleaningEvent(end=step) if isinstance(step, RoundEnd) else CleaningEvent(segment=step)
        send(sys.stdout.buffer, event)


def main(parent: int) -> None:
    """Serve until standard input ends."""
    _die_with(parent)
    os.nice(_NICENESS)
    secret = secrets.randbits(64), secrets.randbits(64)
    while (request := receive(sys.stdin.buffer, CleaningRequest)) is not None:
        try:
            _clean(request, secret)
        except OSError as error:
            failure = CleaningFailure(str(error), errno=error.errno or 0)
            send(sys.stdout.buffer, CleaningEvent(failure=failure))
        except RaykaError as error:
            send(sys.stdout.buffer, CleaningEvent(failure=CleaningFailure(error.message, code=int(error.code))))
        except Exception as error:  # one log must not end the process for all others, round after round
            traceback.print_exc()
            failure = CleaningFailure(repr(error), code=int(ErrorCode.UNKNOWN_SERVER_ERROR))
            send(sys.stdout.buffer, CleaningEvent(failure=failure))


if __name__ == "__main__":
    main(int(sys.argv[1]))
