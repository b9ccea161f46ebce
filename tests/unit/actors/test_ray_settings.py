"""What an embedded Ray is told: the user's own settings win."""

from __future__ import annotations

import pytest

from rayka.actors.node.ray_settings import added, ray_settings

STORE = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": "/gcs"}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, STORE),
        ({"RAY_gcs_storage": "rocksdb"}, STORE),
        ({**STORE, "RAY_gcs_storage_path": "/gcs of an earlier start"}, STORE),
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


def test_the_settings_are_gone_from_the_users_process_once_ray_has_started() -> None:
    before = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": "/the user's", "HOME": "/home"}
    settings = ray_settings(before, "/gcs")
    environ = dict(before)
    with added(environ, settings):
        assert environ == {**before, **settings}
    assert environ == before
    with pytest.raises(OSError, match="Ray did not start"), added(environ, settings):
        raise OSError("Ray did not start")
    assert environ == before
