"""Fixtures of the client side's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.callboard.scripted_service import ScriptedService, scripted_service


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    """A service that answers from a script."""
    with scripted_service() as running:
        yield running
