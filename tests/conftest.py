"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# Machines that run these tests are small and shared: how long one example takes says nothing.
settings.register_profile("rayka", deadline=None)
settings.load_profile("rayka")
