"""`python -m rayka.config` prints docs/configuration.md."""

from __future__ import annotations

from rayka.config.document import render

print(render(), end="")
