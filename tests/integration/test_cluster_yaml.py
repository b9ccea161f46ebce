"""cluster.yaml does what it says: Ray's own launcher brings Ray and the broker up over ssh, and takes both down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDS = ("unshare", "sshd", "ssh", "ssh-keygen", "rsync")


def missing() -> list[str]:
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    return [name for name in NEEDS if not shutil.which(name, path=path)] + (["root"] if os.geteuid() else [])


@pytest.mark.skipif(bool(missing()) and os.environ.get("CI") != "true", reason=f"needs {', '.join(missing())}")
def test_ray_up_serves_kafka_clients_and_ray_down_ends_it() -> None:
    namespaces = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*namespaces, "bash", str(HERE / "cluster_yaml.sh"), sys.executable]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    ready, *rest = done.stdout.splitlines()
    assert ready.startswith("rayka is ready on ")
    assert ready.endswith(":29092")
    assert rest == [
        "undelivered: 0",
        "hello over the wire",
        "gcs_server is back, the partition actors stayed",
        "again hello over the wire",
        "left: nothing",
    ]
