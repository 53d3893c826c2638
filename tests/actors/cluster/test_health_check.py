"""How a process is asked how it is: by its loop, then by another of its threads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.cluster.health_check import check_health


async def answers() -> dict[str, Any]:
    """Answer at once."""
    return {"progress": 7}


async def counts() -> int:
    """Tell the counter."""
    return 8


async def never() -> Any:
    """Say nothing."""
    await asyncio.Event().wait()


async def gone() -> Any:
    """Fail as a call to a process that has ended."""
    raise ConnectionError("it has ended")


async def test_process_that_answers_is_not_asked_for_its_counter() -> None:
    assert await check_health(answers, gone) == {"progress": 7}


async def test_process_that_is_late_is_asked_for_its_counter() -> None:
    assert await check_health(never, counts, timeout_s=0.01) == 8


@pytest.mark.parametrize("progress", [never, gone])
async def test_process_that_does_not_even_tell_its_counter_is_silent(progress: Any) -> None:
    assert await check_health(never, progress, timeout_s=0.01) is None


async def test_end_of_a_process_is_not_silence() -> None:
    with pytest.raises(ConnectionError):
        await check_health(gone, counts)
