"""Notices, in a driver, that the controller died and does not come back, or refuses to serve.

Ray restarts the controller, usually within a second, and nothing on the data path needs it meanwhile. What a restart
does not cure (a damaged metadata log, a full disk) is reported to the operator; the broker serves on with the
last image. A controller that Ray has given up is lost: only a new start of everything brings it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions

from rayka.actors.controller.watch import find_controller
from rayka.errors import RaykaError

GRACE_S = 10.0
_POLL_S = 0.5
_ANSWER_TIMEOUT_S = 30.0


class ControllerGuard:
    """Calls `report(text)` when the controller's state changes for the worse or back, `lost(text)` when it is gone."""

    def __init__(
        self, namespace: str, report: Callable[[str], None], lost: Callable[[str], None], grace_s: float = GRACE_S
    ) -> None:
        self._namespace = namespace
        self._report = report
        self._lost = lost
        self._grace_s = grace_s
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch in a thread that ends with the process."""
        threading.Thread(target=self._run, name="rayka-controller-guard", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer. To be called before the broker is stopped: the end of its controller is no loss then."""
        self._stopped.set()

    def _run(self) -> None:
        while self._is_watching():
            try:
                controller = find_controller(self._namespace)
            except RaykaError as error:
                if self._is_watching():
                    self._lost(f"the controller is gone: {error.message}")
                return
            except ray.exceptions.RayError:  # the GCS is away
                self._stopped.wait(_POLL_S)
                continue
            try:
                ray.get(controller.lives.remote())
            except Exception:  # Ray raises nothing more special for an actor that it does not know any more
                self._await_return(controller)

    def _await_return(self, controller: Any) -> None:
        died_at = time.monotonic()
        reported = ""
        while self._is_alive() and (problem := self._problem(controller)) is not None:
            away_s = time.monotonic() - died_at
            if problem and problem != reported:
                self._report(f"the controller does not serve; the broker goes on without it: {problem}")
                reported = problem
            elif not reported and away_s > self._grace_s:
                reported = f"the controller has not come back for {away_s:.0f} s"
                self._report(reported)
            self._stopped.wait(_POLL_S)
        if reported and self._is_alive():
            self._report("the controller serves again")

    def _is_watching(self) -> bool:
        return not self._stopped.is_set() and bool(ray.is_initialized())

    def _is_alive(self) -> bool:
        """Whether Ray still knows the controller; it restarts one that it knows."""
        if not self._is_watching():
            return False
        try:
            find_controller(self._namespace)
        except RaykaError:
            return False
        except ray.exceptions.RayError:  # the GCS is away
            return self._is_watching()
        return True

    def _problem(self, controller: Any) -> str | None:
        """None if the controller serves, the reason if it says one, empty if it does not answer."""
        try:
            ray.get(controller.started.remote(), timeout=_ANSWER_TIMEOUT_S)
        except RaykaError as refusal:
            return refusal.message
        except Exception:  # as above
            return ""
        return None
