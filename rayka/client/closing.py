"""Context managers that end with `close`, whatever happened in between; an exception goes on."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, Self


class _Closable(Protocol):
    def close(self) -> object: ...


class _AsyncClosable(Protocol):
    def close(self) -> Awaitable[object]: ...


class Closing:
    """Lets `with` close what has a `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Closable, *raised: object) -> None:
        self.close()


class AsyncClosing:
    """Lets `async with` close what has a `close` to be awaited."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: _AsyncClosable, *raised: object) -> None:
        await self.close()
