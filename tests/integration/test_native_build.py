"""The C code is compiled with the package where there is a compiler; elsewhere the package does without it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from rayka.client.native import native_records
from scripts.native_build import BINARY, compile_native

ROOT = Path(__file__).parents[2]
MODULE = "rayka.client.native_records"


def has_compiler() -> bool:
    """Whether this machine can compile for this Python."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    return shutil.which(compiler) is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()


def is_set_up_for_this_checkout() -> bool:
    """Whether scripts/setup.sh has made this environment, which installs this checkout."""
    stamp = Path(sys.prefix) / ".set-up-for"
    return stamp.exists() and stamp.read_text().splitlines()[-1:] == [str(ROOT)]


def load(path: Path) -> Any:
    """The module in this file."""
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_module_is_compiled_where_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    target = tmp_path / BINARY.name
    assert compile_native(ROOT, target) == has_compiler() == target.exists()
    if has_compiler():
        builder = load(target).RecordsBuilder(1000, 100)
        assert builder.put(b"value", None, 7, b"") == 0
        assert [path.name for path in tmp_path.iterdir()] == [BINARY.name]


def test_the_environment_has_the_module_where_it_can_be_compiled() -> None:
    if is_set_up_for_this_checkout() and has_compiler():
        assert native_records is not None


@pytest.mark.parametrize("compiler", ["/bin/false", "no-such-compiler --option"])
def test_without_a_compiler_nothing_is_built_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert not compile_native(ROOT, tmp_path / BINARY.name)
    assert not list(tmp_path.iterdir())
