"""Bounds the time of each asynchronous test of this folder: a broken program fails its test."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

# For a broken program, not for a slow machine: what is run here takes three seconds at most.
WAIT_S_MAX = 60.0
FOLDER = Path(__file__).parent


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Return a test that raises TimeoutError when what it waits for does not come."""

    @functools.wraps(test)
    async def within_its_time(**values: object) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await test(**values)

    return within_its_time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound the asynchronous tests."""
    for item in items:
        is_here = isinstance(item, pytest.Function) and FOLDER in item.path.parents
        if is_here and inspect.iscoroutinefunction(item.obj):
            item.obj = bounded(item.obj)
