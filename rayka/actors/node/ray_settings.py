"""The environment variables that rayka sets for the Ray that it starts, unless the user has set them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping

_GCS_STORAGE = "RAY_gcs_storage"
_GCS_STORAGE_PATH = "RAY_gcs_storage_path"

_SETTINGS = {
    # Ray runs workers at niceness 15, behind everything else on the machine. A broker is not background work.
    "RAY_worker_niceness": "0",
    # The raylet and its object store start side by side, and mostly the store's socket is not there yet when the
    # raylet connects. It tries again after a whole second; here after 20 ms, for the same ten seconds in all.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
    # The rest makes an idle node cheaper. Nothing of it takes part in noticing that a process died.
    # Ray counts and times each event of its loops, for its log files and a few of its own metrics.
    "RAY_event_stats": "0",
    # Ray asks ten times a second whether the disk is too full for objects that are spilled,
    "RAY_local_fs_monitor_interval_ms": "1000",
    # ten times a second whether the object store is so full that Python's garbage should be collected,
    "RAY_raylet_check_gc_period_milliseconds": "500",
    # and five times a second which workers have had nothing to do for a second and may end.
    "RAY_kill_idle_workers_interval_ms": "1000",
    # The log monitor looks for new files ten times a second, or at this interval if there are more than so many. A
    # driver that ends waits half a second for the last lines of its tasks, so the interval is well below.
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    "LOG_NAME_UPDATE_INTERVAL_S": "0.25",
}


def ray_settings(environ: Mapping[str, str], gcs_dir: str) -> dict[str, str]:
    """The variables to set beside those of `environ`.

    The GCS keeps its state in a RocksDB at `gcs_dir`, so that it can be started again in place when it dies: never in
    another directory, where it would find the actors of an earlier Ray. An operator who chose another store keeps it.
    """
    settings = {name: value for name, value in _SETTINGS.items() if name not in environ}
    if environ.get(_GCS_STORAGE, "rocksdb") == "rocksdb" and "RAY_REDIS_ADDRESS" not in environ:
        settings |= {_GCS_STORAGE: "rocksdb", _GCS_STORAGE_PATH: gcs_dir}
    return settings


@contextlib.contextmanager
def added(environ: MutableMapping[str, str], settings: Mapping[str, str]) -> Iterator[None]:
    """Have `settings` in `environ` for a while: a Ray that the user starts later must not have them."""
    before = {name: environ[name] for name in settings if name in environ}
    environ.update(settings)
    try:
        yield
    finally:
        for name in settings.keys() - before.keys():
            environ.pop(name, None)
        environ.update(before)
