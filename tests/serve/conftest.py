"""`./check` runs these tests in an environment with Ray Serve, which would make every other start of Ray slower."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("starlette") else ["test_*.py"]
