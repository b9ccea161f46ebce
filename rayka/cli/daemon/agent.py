"""Runs one of Ray's agents for the raylet, and restarts it when it dies.

A raylet ends when its dashboard agent or its runtime environment agent ends ("the raylet fate shares with the
agent"), and no setting of Ray changes that. So the raylet is given this process for its agent: it runs the real one
and dies only with the raylet. A new agent listens on the port of the first, which the raylet learned once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayka.cli.daemon.processes import dies_with
from rayka.cli.daemon.restart_policy import ChildRun, GiveUp, Policy, RestartPolicy

COMPONENTS = ("dashboard_agent", "runtime_env_agent")
"""Ray's names for the agents that a raylet cannot do without."""
RAYLET_PID = "RAY_RAYLET_PID"
"""Agents end when their parent is not this process."""
PORT_FILES = {
    "--runtime-env-agent-port": "runtime_env_agent_port",
    "--grpc-port": "metrics_agent_port",
    "--metrics-export-port": "metrics_export_port",
    "--listen-port": "dashboard_agent_listen_port",
}
_POLICY = Policy(max_failures=8, first_delay_s=0.2, max_delay_s=5.0, healthy_after_s=30.0)
_READY_S = 2.0


def install() -> None:
    """Let every raylet that this process starts run its agents below this one. Ray builds their command lines here."""
    import ray._private.services as services

    build: Any = services._build_python_executable_command_memory_profileable

    def build_kept(component: str, *args: Any, **kwargs: Any) -> list[str]:
        command: list[str] = build(component, *args, **kwargs)
        return [sys.executable, "-m", __name__, *command] if component in COMPONENTS else command

    services._build_python_executable_command_memory_profileable = build_kept


def main(command: Sequence[str]) -> int:
    """Keep the agent running; ends when it fails so often that the raylet should know."""
    policy = RestartPolicy(_POLICY)
    environ = os.environ | {RAYLET_PID: str(os.getpid())}
    arm = dies_with(os.getpid())
    while True:
        began = time.monotonic()
        child = subprocess.Popen(with_ports(command), env=environ, preexec_fn=arm)
        exit_code = child.wait()
        lived_s = time.monotonic() - began
        run = ChildRun(f"exited with {exit_code}", lived_s if lived_s >= _READY_S else None)
        verdict = policy.after_exit(run)
        if isinstance(verdict, GiveUp):
            return exit_code if exit_code > 0 else 1
        time.sleep(verdict.delay_s)


def with_ports(command: Sequence[str]) -> list[str]:
    """The command with the ports that an earlier run has chosen in the place of zeros."""
    options = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
    directory, node_id = options.get("--session-dir", ""), options.get("--node-id", "")
    words = list(command)
    for option, name in PORT_FILES.items():
        file = Path(directory, f"{name}_{node_id}")
        if options.get(option) == "0" and file.is_file():
            words[words.index(f"{option}=0")] = f"{option}={file.read_text().strip()}"
    return words


if __name__ == "__main__":
    import signal

    armed = dies_with(os.getppid())
    armed()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
