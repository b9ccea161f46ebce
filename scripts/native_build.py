"""Compiles rayka/client/native_*.c when the package is built, if there is a C compiler.

    python scripts/native_build.py           compiles it into this checkout

pyproject.toml names `NativeBuild` as hatchling's hook. Without a compiler, or Python's headers, the package is built
without the compiled module, and plain Python does its work.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # this is not a build
    BuildHookInterface = object

FOLDER = Path("rayka/client")
SOURCES = (FOLDER / "native_records.c", FOLDER / "native_rows.c")
BINARY = FOLDER / "native_records.abi3.so"
_TIMEOUT_S = 300


def compile_native(root: Path, target: Path) -> bool:
    """Compile the module to this file, which is replaced as a whole: processes may use it. Returns whether it could."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    made = target.with_name(f".{target.name}.{os.getpid()}")
    arguments = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{sysconfig.get_path('include')}"]
    try:
        subprocess.run(
            [*compiler, *arguments, *(str(root / source) for source in SOURCES), "-o", str(made)],
            check=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        os.replace(made, target)
    except (OSError, subprocess.SubprocessError):
        made.unlink(missing_ok=True)
        return False
    return True


def compile_in_place(root: Path) -> bool:
    """Compile it for the programs that run from this checkout. What an earlier version left does not stay."""
    is_compiled = compile_native(root, root / BINARY)
    if not is_compiled:
        (root / BINARY).unlink(missing_ok=True)
    return is_compiled


class NativeBuild(BuildHookInterface):
    """Adds the compiled module to a wheel, or to the checkout of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling's documentation, "Build hook plugins"."""
        root = Path(self.root)
        if version == "editable":
            compile_in_place(root)
            return
        self._folder = tempfile.TemporaryDirectory()
        compiled = Path(self._folder.name) / BINARY.name
        if compile_native(root, compiled):
            build_data["force_include"][str(compiled)] = str(BINARY)
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"], build_data["tag"] = False, f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled; the wheel has it."""
        if version != "editable":
            self._folder.cleanup()


if __name__ == "__main__":
    sys.exit(not compile_in_place(Path(__file__).parents[1]))
