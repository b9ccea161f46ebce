"""What every remote store must do: a directory, and a bucket on a real server that speaks S3's protocol."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from rayka.actors.remote.stores import open_store
from rayka.config import BrokerConfig
from rayka.errors import RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.remote.directory_store import MARKER, DirectoryStore
from rayka.storage.remote.segment_copy import PIECE_BYTES
from rayka.storage.remote.store import RemoteStore
from tests.support.power_cut import PowerCut

NAME = "orders-0123/0/00000000000000000042-4567.log"


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The settings for a bucket, with another prefix for each test."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "rsm.config.url": "s3://segments",
        "rsm.config.storage.s3.endpoint.url": f"http://{host}:{port}",
        "rsm.config.storage.s3.region": "us-east-1",
        "rsm.config.storage.aws.access.key.id": "key",
        "rsm.config.storage.aws.secret.access.key": "secret",
    }
    create = urllib.request.Request(f"http://{host}:{port}/segments", method="PUT")
    urllib.request.urlopen(create, timeout=30).close()
    yield settings
    server.stop()


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStore:
    """An empty store."""
    if request.param == "directory":
        return new_store({"rsm.config.url": f"file://{tmp_path}/store"})
    settings = request.getfixturevalue("s3")
    return new_store(settings | {"rsm.config.url": f"s3://segments/{uuid.uuid4().hex}"})


def new_store(settings: dict[str, str]) -> RemoteStore:
    """The store that the settings name, as a broker has it that needs it for the first time."""
    store = open_store(BrokerConfig.parse(settings))
    store.create()
    return store


def test_an_object_is_read_in_parts(store: RemoteStore) -> None:
    store.put(NAME, [b"0123", b"456789"])

    assert store.get(NAME, 0, 10) == b"0123456789"
    assert store.get(NAME, 3, 4) == b"3456"
    assert store.get(NAME, 8, 100) == b"89"


def test_an_empty_object_is_an_object(store: RemoteStore) -> None:
    store.put(NAME, [b""])

    assert store.get(NAME, 0, 100) == b""


def test_a_large_object_is_sent_in_pieces(store: RemoteStore) -> None:
    pieces = [bytes([number]) * PIECE_BYTES for number in range(3)]

    store.put(NAME, [*pieces, b"end"])

    assert store.get(NAME, PIECE_BYTES - 1, 3) == b"\0\1\1"
    assert store.get(NAME, 3 * PIECE_BYTES, 100) == b"end"


def test_an_object_that_fails_on_its_way_is_not_there(store: RemoteStore) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(PIECE_BYTES)
        raise OSError("the disk fails")

    with pytest.raises(OSError, match="the disk fails"):
        store.put(NAME, pieces())

    with pytest.raises(FileNotFoundError):
        store.get(NAME, 0, 1)
    store.delete(NAME)
    assert list(store.list("")) == []


def test_an_object_is_replaced(store: RemoteStore) -> None:
    store.put(NAME, [b"old and long"])
    store.put(NAME, [b"new"])

    assert store.get(NAME, 0, 100) == b"new"


def test_objects_are_listed_by_prefix_and_deleted(store: RemoteStore) -> None:
    names = ["orders-1/0/a.log", "orders-1/1/a.log", "users-1/0/a.log"]
    for name in names:
        store.put(name, [b"x"])

    assert sorted(store.list("orders-1/")) == names[:2]
    store.delete(names[0])
    store.delete(names[0])
    assert sorted(store.list("")) == names[1:]
    with pytest.raises(FileNotFoundError):
        store.get(names[0], 0, 1)


@pytest.mark.parametrize("seed", range(8))
def test_what_was_put_and_deleted_is_so_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    files = PowerCut()
    store = DirectoryStore(files, str(tmp_path / "tiered" / "store"))
    store.create()
    for name in ("t/0/a.log", "t/0/b.log"):
        store.put(name, [b"records"])
    store.delete("t/0/a.log")
    files.crash(random.Random(seed))

    assert list(store.list("t/")) == ["t/0/b.log"]
    assert store.get("t/0/b.log", 0, 100) == b"records"


def test_directories_go_with_the_last_object_in_them(tmp_path: Path) -> None:
    store = DirectoryStore(RealFiles(), str(tmp_path))
    store.create()
    for name in ("t-1/0/a.log", "t-1/0/b.log", "t-1/1/a.log"):
        store.put(name, [b"records"])
    for name, left in [("t-1/0/a.log", ["t-1", "0", "1"]), ("t-1/0/b.log", ["t-1", "1"]), ("t-1/1/a.log", [])]:
        for _ in range(2):
            store.delete(name)
            assert sorted(each.name for each in tmp_path.rglob("*") if each.is_dir()) == sorted(left)
    store.put("t-1/0/a.log", [b"again"])
    assert store.get("t-1/0/a.log", 0, 100) == b"again"


class Crossing(RealFiles):
    """Once armed, another process deletes objects when a directory was made or is not to be removed."""

    def __init__(self, delete: Callable[[], object]) -> None:
        self.delete: Callable[[], object] | None = None
        self._work = delete

    def arm(self) -> None:
        """The next call is the one."""
        self.delete = self._work

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        self._cross()

    def remove_empty_directory(self, path: str) -> None:
        try:
            super().remove_empty_directory(path)
        finally:
            self._cross()

    def _cross(self) -> None:
        if self.delete is not None:
            delete, self.delete = self.delete, None
            delete()


@pytest.mark.parametrize("object_put", ["t-1/0/b.log", "t-2/0/b.log"])
def test_an_object_is_put_whose_directory_another_process_removes_at_that_moment(
    tmp_path: Path, object_put: str
) -> None:
    other = DirectoryStore(RealFiles(), str(tmp_path))
    other.create()
    other.put("t-1/0/a.log", [b"old"])
    files = Crossing(lambda: [other.delete(name) for name in ("t-1/0/a.log", object_put)])
    store = DirectoryStore(files, str(tmp_path))
    store.open()
    files.arm()
    store.put(object_put, [b"new"])
    assert store.get(object_put, 0, 100) == b"new"
    assert list(store.list("")) == [object_put]


def test_two_processes_delete_the_last_objects_of_a_topic_at_the_same_time(tmp_path: Path) -> None:
    other = DirectoryStore(RealFiles(), str(tmp_path))
    other.create()
    for name in ("t-1/0/a.log", "t-1/0/b.log"):
        other.put(name, [b"old"])
    files = Crossing(lambda: other.delete("t-1/0/b.log"))
    store = DirectoryStore(files, str(tmp_path))
    store.open()
    files.arm()
    store.delete("t-1/0/a.log")
    assert [each.name for each in tmp_path.iterdir()] == [MARKER]


def test_a_directory_that_goes_away_is_an_error(tmp_path: Path) -> None:
    store = new_store({"rsm.config.url": f"file://{tmp_path}/store"})
    store.put(NAME, [b"x"])
    shutil.move(tmp_path / "store", tmp_path / "elsewhere")

    for call in (lambda: store.put(NAME, [b"y"]), lambda: store.delete(NAME), lambda: store.get(NAME, 0, 1)):
        with pytest.raises(OSError, match=r"not there|No such file"):
            call()
    shutil.move(tmp_path / "elsewhere", tmp_path / "store")
    assert store.get(NAME, 0, 1) == b"x"


def test_a_directory_that_is_not_mounted_when_the_broker_starts_is_an_error_until_it_is(tmp_path: Path) -> None:
    settings = {"rsm.config.url": f"file://{tmp_path}/store"}
    new_store(settings).put(NAME, [b"x"])
    shutil.move(tmp_path / "store", tmp_path / "unmounted")
    (tmp_path / "store").mkdir()

    store = open_store(BrokerConfig.parse(settings))

    for call in (lambda: store.put(NAME, [b"y"]), lambda: store.delete(NAME), lambda: list(store.list(""))):
        with pytest.raises(OSError, match="mount the file system that has it"):
            call()
    assert list((tmp_path / "store").iterdir()) == []
    (tmp_path / "store").rmdir()
    shutil.move(tmp_path / "unmounted", tmp_path / "store")
    assert store.get(NAME, 0, 1) == b"x"
    store.put(NAME, [b"y"])


def test_a_mount_point_that_was_seen_before_anything_was_mounted_there_is_not_the_store_later(tmp_path: Path) -> None:
    config = BrokerConfig.parse({"rsm.config.url": f"file://{tmp_path}/store"})
    mount_point = tmp_path / "store"
    mount_point.mkdir()
    open_store(config)
    mount_point.rename(tmp_path / "bare")
    mount_point.mkdir()
    store = open_store(config)
    store.create()
    store.put(NAME, [b"x"])
    mount_point.rename(tmp_path / "unmounted")
    (tmp_path / "bare").rename(mount_point)

    with pytest.raises(OSError, match=r"no file \.rayka-remote-store"):
        open_store(config).put(NAME, [b"y"])
    assert list(mount_point.iterdir()) == []


def test_a_server_that_is_away_is_an_error(s3: dict[str, str]) -> None:
    settings = s3 | {"rsm.config.storage.s3.endpoint.url": "http://127.0.0.1:9"}
    store = open_store(BrokerConfig.parse(settings))

    for call in (lambda: store.put(NAME, [b"y"]), lambda: store.delete(NAME), lambda: store.get(NAME, 0, 1)):
        with pytest.raises(OSError, match=r"127\.0\.0\.1:9"):
            call()


def test_a_bucket_without_the_library_is_refused_with_what_to_install(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(RaykaError, match="pip install obstore"):
        open_store(BrokerConfig.parse(s3))


def test_another_directory_in_the_place_of_the_store_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = new_store({"rsm.config.url": f"file://{path}"})
    path.rename(tmp_path / "away")
    path.mkdir()

    with pytest.raises(OSError, match="not the directory that was the remote store"):
        store.put(NAME, [b"records"])
    with pytest.raises(OSError, match="not the directory that was the remote store"):
        store.delete(NAME)
    assert list(path.iterdir()) == []

    path.rmdir()
    (tmp_path / "away").rename(path)
    store.put(NAME, [b"records"])


def test_a_directory_that_cannot_be_listed_is_an_error_and_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is known of a partition and the store has nothing of it, the local log becomes the whole log."""
    store = DirectoryStore(RealFiles(), str(tmp_path / "store"))
    store.create()
    store.put("orders/0/segment.log", [b"records"])

    def fail(path: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match="Stale file handle"):
        next(iter(store.list("orders/0/")), None)
    monkeypatch.undo()
    assert list(store.list("orders/0/")) == ["orders/0/segment.log"]
    assert not list(store.list("orders/1/"))
