"""What connections keep of their last requests is small, however long they are idle."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from rayka.gateway.handlers.fetch.template import FetchTemplate
from rayka.gateway.handlers.groups.commit_template import CommitTemplate
from rayka.gateway.handlers.produce.template import ProduceTemplate
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import create, run
from tests.unit.gateway.asking_groups import ask, commit_errors, committing
from tests.unit.gateway.test_produce_fetch import call, fetch_request, produce_request
from tests.unit.gateway.test_produce_template import batch
from tests.unit.gateway.wire_client import WireClient

TEMPLATES: tuple[type, ...] = ProduceTemplate, FetchTemplate, CommitTemplate
VERSION = 9
FETCH_VERSION = 12


def templates() -> list[Any]:
    return [each for each in gc.get_objects() if type(each) in TEMPLATES]  # isinstance would follow weak proxies


def test_no_idle_connection_keeps_an_old_image_of_the_cluster(tmp_path: Path) -> None:
    """Else many of them would keep as many images, each of which has all topics."""

    async def check(client: WireClient, broker: LocalBroker) -> None:
        of_other_tests = {id(each) for each in templates()}
        await create(broker, NewTopic("orders", 1))
        topic_id = broker.image.topics["orders"].topic_id
        await call(client, ApiKey.PRODUCE, VERSION, produce_request(VERSION, "orders", topic_id, {0: batch(0)}))
        request = fetch_request(FETCH_VERSION, "orders", topic_id, {0: 0})
        await call(client, ApiKey.FETCH, FETCH_VERSION, request)
        committed = await ask(client, ApiKey.OFFSET_COMMIT, VERSION, **committing(VERSION, "orders", 1))
        assert commit_errors(committed) == [0]
        kept = {type(each) for each in templates() if id(each) not in of_other_tests}
        assert kept == set(TEMPLATES)
        assert not [each for each in gc.get_referrers(broker.image) if type(each) in TEMPLATES]

    run(tmp_path, check)
