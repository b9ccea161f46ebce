"""The names of the threads that rayka makes: `rayka.actors.controller.watch` lets none of them start Ray."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayka
from rayka.client.loop import LoopThread

PREFIX = "rayka-"
NAMES = {"Thread": ("name", None), "Timer": (None, None), "ThreadPoolExecutor": ("thread_name_prefix", 1)}
"""What makes threads, with the keyword and the position of their names."""
SOURCE = Path(rayka.__file__).parent


def made(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.expr | None]]:
    """Each call that makes threads, and what it gives for their names."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if function in NAMES:
                keyword, position = NAMES[function]
                given = [each.value for each in call.keywords if each.arg == keyword]
                given += [] if position is None else call.args[position : position + 1]
                yield call, given[0] if given else None


def has_prefix(name: ast.expr | None, tree: ast.Module) -> bool:
    """Whether it begins with the prefix: a text, or the name of a constant or of an argument with such a default."""
    match name:
        case ast.Constant(value=str(text)):
            return text.startswith(PREFIX)
        case ast.JoinedStr(values=[first, *_]):
            return has_prefix(first, tree)
        case ast.Name(id=variable):
            return any(has_prefix(value, tree) for value in defaults(variable, tree))
    return False


def defaults(variable: str, tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(getattr(each, "id", "") == variable for each in node.targets):
            yield node.value
        if isinstance(node, ast.arguments):
            with_defaults = node.args[len(node.args) - len(node.defaults) :]
            yield from (value for arg, value in zip(with_defaults, node.defaults, strict=True) if arg.arg == variable)


def test_every_thread_in_the_source_has_the_prefix() -> None:
    count, without = 0, []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if not any(name in text for name in NAMES):
            continue  # to parse all of the source takes a second
        tree = ast.parse(text)
        for call, name in made(tree):
            count += 1
            if not has_prefix(name, tree):
                without.append(f"{path.relative_to(SOURCE)}:{call.lineno}")
    assert without == []
    assert count > 10, "the search finds them"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("Thread(target=run)", False),
        ("threading.Thread(target=run, name='mine')", False),
        ("threading.Timer(1, run)", False),
        ("ThreadPoolExecutor(2)", False),
        ("ThreadPoolExecutor(2, 'rayka-reads')", True),
        ("Thread(target=run, name=f'rayka-{number}')", True),
        ("Thread(target=run, name=NAME)\nNAME = 'rayka-name'", True),
    ],
)
def test_the_search_tells_names_with_the_prefix_from_others(source: str, found: bool) -> None:
    tree = ast.parse(source)
    assert [has_prefix(name, tree) for _, name in made(tree)] == [found]


def test_calls_that_wait_in_a_thread_of_the_clients_loop_have_the_prefix() -> None:
    loop = LoopThread()
    assert loop.run(asyncio.to_thread(threading.current_thread)).name.startswith(PREFIX)
    loop.close()
