"""Packages whose names are loaded when they are used."""

from __future__ import annotations

import sys

import pytest

import rayka.spark
from rayka.lazy import lazy_names


def test_an_error_about_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    load, _ = lazy_names("rayka.spark", {"session": "pyspark.there_is_no_such_module"}, extra="spark")
    with pytest.raises(ModuleNotFoundError) as missing:
        load("session")
    (note,) = missing.value.__notes__
    assert note == "rayka.spark needs the extra `spark`: pip install '.[spark]' in the checkout of rayka"


def test_spark_without_pyspark_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rayka.spark.sessions", None)
    monkeypatch.delitem(vars(rayka.spark), "session", raising=False)
    with pytest.raises(ModuleNotFoundError) as missing:
        _ = rayka.spark.session
    assert "pip install '.[spark]'" in missing.value.__notes__[0]
