"""Calls to actors by name: from a process that is in no cluster, and while a look-up takes long."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from actors.transport.actor_calls import ActorCall, BatchCall, is_unknown_outcome
from core.settings import build_settings
from tests.actors.transport.listening import listening


async def test_call_outside_a_cluster_fails_and_starts_none() -> None:
    """Ray's look-up started a cluster of a dozen processes, for 20 s."""
    with pytest.raises(ConnectionError) as failed:
        await ActorCall("nobody", "ping")()
    assert is_unknown_outcome(failed.value)
    assert not ray.is_initialized()


async def test_a_look_up_that_takes_long_holds_up_nothing_else() -> None:
    """Without a GCS each held a replica's loop for as long, and HAProxy took it for dead."""
    answers, asked = threading.Event(), 0

    async def ping(number: int) -> int:
        return number

    def find(name: str) -> Any:
        nonlocal asked
        asked += 1
        assert answers.wait(60)
        return SimpleNamespace(ping=SimpleNamespace(remote=ping))

    call = ActorCall("ledger", "ping", find)
    several = [asyncio.ensure_future(call(number)) for number in range(3)]
    several.pop().cancel()
    await asyncio.sleep(0)
    assert not any(task.done() for task in several), "the loop turns"
    answers.set()
    assert await asyncio.gather(*several) == [0, 1]
    assert await call(7) == 7
    assert asked == 1


async def test_an_actor_that_was_not_found_is_looked_up_again() -> None:
    found: list[Any] = []

    async def ping() -> str:
        return "here"

    def find(name: str) -> Any:
        if not found:
            raise ValueError(name)
        return found[0]

    call = ActorCall("ledger", "ping", find)
    with pytest.raises(ValueError, match="ledger"):
        await call()
    found.append(SimpleNamespace(ping=SimpleNamespace(remote=ping)))
    assert await call() == "here"


async def test_a_call_without_an_answer_ends_with_its_outcome_unknown(tmp_path: Path) -> None:
    """Its process is frozen, or its machine was cut off: no connection tells of that."""

    async def wait(batch: list[int]) -> list[int]:
        await asyncio.Event().wait()
        return batch

    server = await listening(tmp_path, "ledger", {"submit": wait})
    settings = build_settings({"run_folder": str(tmp_path)})
    expected = r"ledger\.submit: no reply within 0\.05 s"
    with (
        closing(BatchCall(settings, "ledger", "submit", timeout_s=0.05)) as call,
        pytest.raises(ConnectionError, match=expected) as late,
    ):
        await call([1])
    assert is_unknown_outcome(late.value)
    await server.close()
