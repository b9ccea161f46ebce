"""Every setting is either read by some part of rayka, or its text says that it is not in use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rayka
from rayka.config import BROKER_CONFIGS, TOPIC_CONFIGS
from rayka.config.groups import GROUP_CONFIGS
from rayka.config.unused import NOT_IN_USE, UNUSED_CONFIGS

SOURCE = "\n".join(path.read_text() for path in Path(rayka.__file__).parent.rglob("*.py"))
DEFAULTS_OF_TOPICS = {synonym.name for definition in TOPIC_CONFIGS.values() for synonym in definition.synonyms}
BOUNDS_AND_DEFAULTS_OF_GROUPS = {
    f"group.{kind}.{bound}{name.removeprefix(kind + '.')}"
    for name in GROUP_CONFIGS
    for kind in ("consumer", "share")
    for bound in ("", "min.", "max.")
    if name.startswith(kind + ".")
}
THERE_IS_BUT_ONE_VALUE = {"group.share.assignors"}


def is_read(name: str) -> bool:
    """Whether the source says the name once more than in its definition, or gives it to a constant."""
    last = name.removeprefix("rlmm.config.remote.log.metadata.topic.")
    times = SOURCE.count(f'"{name}"') + 2 * SOURCE.count(f"{{prefix}}{last}")
    return times > 1 or bool(re.search(rf'[A-Z] = "{re.escape(name)}"', SOURCE))


@pytest.mark.parametrize("name", sorted(BROKER_CONFIGS.keys() - UNUSED_CONFIGS.keys()))
def test_a_setting_is_read_or_says_that_it_is_not_in_use(name: str) -> None:
    has_effect = name in DEFAULTS_OF_TOPICS | BOUNDS_AND_DEFAULTS_OF_GROUPS | THERE_IS_BUT_ONE_VALUE or is_read(name)
    assert has_effect or name in NOT_IN_USE
