"""The loop of an old client's process: one JSON request and one JSON answer a line, for adapters/piped.py.

These files run with the old libraries in place of the installed ones, so they import nothing of the tests.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from typing import Any


def to_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def to_text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def pairs(records: list[dict[str, Any]]) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of each record; these clients know nothing else."""
    return [(to_bytes(record["key"]), to_bytes(record["value"])) for record in records]


def item(offset: int, key: bytes | None, value: bytes | None, timestamp: int | None = None) -> dict[str, Any]:
    return {"offset": offset, "key": to_text(key), "value": to_text(value), "headers": [], "timestamp": timestamp}


def serve(client: Any) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"ok": getattr(client, request.pop("op"))(**request)}
        except Exception as error:
            code = getattr(error, "errno", None)
            answer = {"error": repr(error), "code": code if isinstance(code, int) else None}
        print(json.dumps(answer), flush=True)
