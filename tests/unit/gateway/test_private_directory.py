"""The directory of the broker's sockets is used only if nobody else can get into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.private_directory import make_private_directory


def test_the_directory_is_made_for_its_owner_alone_and_can_be_used_again(tmp_path: Path) -> None:
    path = tmp_path / "private"
    make_private_directory(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    make_private_directory(str(path))


def make_open(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def make_symlink(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.mkdir(mode=0o700)
    path.symlink_to(target)


@pytest.mark.parametrize("occupy", [make_open, make_symlink, Path.touch])
def test_a_directory_that_others_may_use_is_refused(tmp_path: Path, occupy: Callable[[Path], None]) -> None:
    path = tmp_path / "private"
    occupy(path)
    with pytest.raises(RaykaError) as refusal:
        make_private_directory(str(path))
    assert refusal.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(RaykaError, match="belongs to user 12345"):
        make_private_directory(str(path))
