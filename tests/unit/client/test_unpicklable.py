"""A client in a Ray task is refused with what to do instead."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from rayka.client.cluster import Cluster


@pytest.mark.parametrize(
    "create",
    [
        lambda cluster: cluster,
        Cluster.admin,
        Cluster.producer,
        Cluster.reader,
        Cluster.consumer,
        lambda cluster: cluster.consumer("a group"),
        Cluster.async_admin,
        Cluster.async_producer,
        Cluster.async_reader,
        Cluster.async_consumer,
        lambda cluster: cluster.async_consumer("a group"),
    ],
)
def test_pickling_a_client_says_where_to_connect(cluster: Cluster, create: Callable[[Cluster], Any]) -> None:
    client = create(cluster)
    message = rf"{type(client).__name__} can't be pickled: call rayka\.connect\(\) in the Ray task or actor"
    with pytest.raises(pickle.PicklingError, match=message):
        pickle.dumps([client])
