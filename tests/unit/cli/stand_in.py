"""Plays the broker process for the supervisor: `python stand_in.py COUNTER_FILE BEHAVIOUR...`.

It leaves a grandchild in a session of its own, as Ray's workers are, and tells both ids on stderr.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def main(counter: Path, behaviour: set[str]) -> int:
    settings = json.load(sys.stdin)

    def tell(**news: str) -> None:
        os.write(settings["status_fd"], json.dumps(news).encode() + b"\n")

    lives = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(lives))
    if "refuses" in behaviour:
        tell(failed="no.such.config is not a setting")
        return 1
    if behaviour & {"dies", "dies-for-long"} or ("dies-after-first" in behaviour and lives > 1):
        return 3
    # A shell between, so that the grandchild is an orphan at once.
    shell = subprocess.run(
        ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True, check=True
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it stays pending until it is waited for
    print("lives", os.getpid(), shell.stdout.strip(), file=sys.stderr, flush=True)
    print("noise that must not reach the supervisor's standard output")
    if "never-ready" not in behaviour:
        tell(ready=settings["listen"].replace(":0", ":4242"))
    if "stubborn" in behaviour:
        signal.pause()
    signal.sigwait({signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), set(sys.argv[2:])))
