"""What an embedded Ray is told: the user's own settings win."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from rayka.actors.node.node import remove_ray_files, start_ray
from rayka.actors.node.ray_settings import ray_settings

STORE = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": "/gcs"}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, STORE),
        ({"RAY_gcs_storage": "rocksdb"}, STORE),
        ({**STORE, "RAY_gcs_storage_path": "/left by an earlier Ray"}, STORE),
        ({"RAY_gcs_storage": "memory"}, {}),
        ({"RAY_REDIS_ADDRESS": "redis:6379"}, {}),
    ],
)
def test_an_embedded_gcs_keeps_its_state_on_disk_unless_the_operator_chose_a_store(
    given: dict[str, str], added: dict[str, str]
) -> None:
    settings = ray_settings(given, "/gcs")
    assert {name: settings[name] for name in STORE if name in settings} == added


def test_a_setting_of_ray_that_the_user_made_is_kept() -> None:
    by_default = ray_settings({}, "/gcs")
    for name in by_default.keys() - STORE.keys():
        assert ray_settings({name: "the user's"}, "/gcs") == {k: v for k, v in by_default.items() if k != name}


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[str]:
    """Of a broker that starts a Ray of its own."""
    yield str(tmp_path)
    remove_ray_files(str(tmp_path))


@pytest.mark.parametrize("starts", [True, False])
def test_ray_starts_with_the_settings_and_leaves_none_in_the_users_process(
    data_dir: str, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ray that the program starts later would have them too, among them the directory of a GCS that is gone."""
    seen: dict[str, str] = {}

    def init(**_: object) -> None:
        seen.update(os.environ)
        if not starts:
            raise OSError("Ray did not start")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_REDIS_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_gcs_storage", "rocksdb")
    monkeypatch.setenv("RAY_gcs_storage_path", "/the user's")
    before = dict(os.environ)
    with contextlib.nullcontext() if starts else pytest.raises(OSError, match="Ray did not start"):
        start_ray(None, data_dir)
    gcs_dir = seen["RAY_gcs_storage_path"]
    assert gcs_dir != "/the user's"
    assert seen == before | ray_settings(before, gcs_dir)
    assert dict(os.environ) == before


def test_a_ray_is_started_although_ray_address_names_another(data_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job of Ray. Ray would refuse the settings with which rayka starts one."""
    given: dict[str, Any] = {}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **settings: given.update(settings))
    start_ray(None, data_dir)
    services: Any = ray._private.services
    assert services.canonicalize_bootstrap_address(given.get("address"), given["_temp_dir"]) is None
