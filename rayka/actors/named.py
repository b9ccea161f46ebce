"""Actors by name, in the Ray cluster that a client has joined and in no other, and calls to them."""

from __future__ import annotations

from typing import Any

import ray
import ray.exceptions

from rayka.errors import RaykaError


def joined_node() -> str:
    """Ray's id of the node at which this process has joined a Ray cluster; no other cluster has a node of this id."""
    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


def find_actor(name: str, namespace: str, node_id: str) -> Any:
    """The handle of an actor. Raises ValueError if there is none, and if this process has left the node `node_id`.

    A process may leave one Ray cluster and join another, where actors have the same names.
    """
    handle = ray.get_actor(name, namespace=namespace)
    if joined_node() != node_id:
        raise ValueError(f"this process has joined another Ray cluster since, with a {name} of its own")
    return handle


def call(method: Any, *arguments: Any) -> Any:
    """Call an actor's method; returns the reference of its answer. Raises RayError."""
    try:
        return method.remote(*arguments)
    except (RaykaError, ray.exceptions.RayError):
        raise
    except Exception as error:  # Ray raises nothing more special for an actor that it does not know any more
        raise ray.exceptions.RaySystemError(str(error)) from error  # type: ignore[no-untyped-call]
