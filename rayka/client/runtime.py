"""Where the broker runs that `rayka up` started: `DATA_DIR/rayka.json`, and a per-user pointer to the latest DATA_DIR.

`rayka up` writes both when it is ready and removes the first when it stops; `rayka.connect()` and the other
commands read them. The files hold no secrets: Ray's token stays where Ray keeps it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "rayka.json"


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that serves: the supervisor's process id, where clients and where Python programs connect."""

    pid: int
    bootstrap_servers: str
    address: str
    data_dir: str


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/rayka`, commonly `~/.local/share/rayka`."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "rayka"


def pointer() -> Path:
    """The file that names the data directory of the broker started last by this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "rayka" / "latest"


def publish(running: Running) -> None:
    """Tells the other commands of this user where the broker is."""
    _write(Path(running.data_dir) / NAME, json.dumps(asdict(running), indent=2) + "\n")
    with contextlib.suppress(OSError):  # a read-only home costs convenience, not the broker
        _write(pointer(), running.data_dir + "\n")


def withdraw(data_dir: Path) -> None:
    """The broker of this directory serves no more."""
    (data_dir / NAME).unlink(missing_ok=True)


def find(data_dir: Path) -> Running | None:
    """The broker that runs on `data_dir`, None if none does."""
    try:
        running = Running(**json.loads((data_dir / NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return running if Path(f"/proc/{running.pid}").exists() else None


def latest_data_dir() -> Path:
    """The data directory of the broker started last, or the default one if that directory is gone."""
    try:
        data_dir = Path(pointer().read_text().strip())
    except OSError:
        return default_data_dir()
    return data_dir if data_dir.is_dir() else default_data_dir()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
