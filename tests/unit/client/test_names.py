"""What a program imports, and the keyword arguments that a type checker knows."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import rayka
import rayka.client
from rayka.client.group.settings import GroupConsumerConfig, GroupConsumerOptions
from rayka.client.settings import ConsumerConfig, ConsumerOptions, ProducerConfig, ProducerOptions


def test_every_name_can_be_imported() -> None:
    for package in (rayka, rayka.client):
        for name in package.__all__:
            assert getattr(package, name) is not None
    assert rayka.Cluster is rayka.client.Cluster
    with pytest.raises(AttributeError):
        rayka.client.NoSuchName  # noqa: B018


def test_importing_the_packages_brings_no_ray() -> None:
    program = "import sys, rayka, rayka.client; print([m for m in ('ray', 'uvloop', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("config", "options"),
    [(ProducerConfig, ProducerOptions), (ConsumerConfig, ConsumerOptions), (GroupConsumerConfig, GroupConsumerOptions)],
)
def test_the_keyword_arguments_are_the_settings(config: type, options: type) -> None:
    types = typing.get_type_hints(config)
    settings = {field.name: types[field.name] for field in dataclasses.fields(config)}
    assert typing.get_type_hints(options) == settings


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(rayka.__file__).parent / "py.typed").exists()
