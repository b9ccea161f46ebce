"""Stands for pip where a document installs rayka: the environment has it, so only the extras are checked."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

known = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
for word in sys.argv[1:]:
    for extra in re.findall(r"\[(.*)\]", word):
        missing = set(extra.split(",")) - set(known)
        sys.exit(f"no extra {missing}" if missing else 0)
