"""What holds for every test: Hypothesis's profile and the time a test may take."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support.scale import IS_LONG, examples

LONG_TIMEOUT_S = 7200

# The machines that run these tests are small and shared, so the duration of one example says nothing.
# A failure prints the blob that reproduces it.
settings.register_profile("rayka", deadline=None, print_blob=True, max_examples=examples(100))
settings.load_profile("rayka")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a long run a test may take two hours."""
    if IS_LONG:
        for item in items:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S), append=False)
