"""The planned hand-over of the ledger to another process; no request is refused because of it.

Steps:
1. A new process starts under the free name and waits for the writer's advisory lock.
2. The old writer finishes its batch, closes its session, and queues new requests.
3. The new process gets the lock and becomes the writer.
4. The old actor is ended. Its callers read the head row to find the new writer. They repeat their
   unanswered requests at the new writer under the same keys.

If a step fails, a surviving process still gets the lock: after `HOLD_S` the old writer waits for
the lock again (`ledger/writer/group_commit.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from ray.exceptions import RayError

from actors.cluster.ledgers.ledger_slots import end_ledger, existing_ledgers, make_ledger
from actors.cluster.scaling.ray_machines import working_machines
from actors.transport.names import LEDGERS
from core.settings import Settings

log = logging.getLogger("callboard.ledger")

START_TIMEOUT_S: Final = 60.0
STEP_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.1


class HandoverFailed(Exception):
    """The ledger was not handed over in time."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the ledger was not handed over: {reason}")


async def hand_over_ledger(settings: Settings, *, machine: str = "") -> str:
    """Replace the ledger's writer by a new process, and end the old process.

    Any process of the cluster can call this function. An existing standby is ended first, because
    it may run another release. In a cluster of several machines the timekeeper then starts a new
    standby.

    Args:
        settings: the settings of the new process.
        machine: Ray's id of the machine for the new process. "": another machine than the current
            writer's, if there is another; else any machine.

    Returns: the new actor's name.

    Raises:
        HandoverFailed: no writer answers, or a step took too long.
    """
    handles, writer = await _await_writer()
    if not machine:
        own = (await ping(handles[writer]) or {}).get("machine")
        machine = next(iter(set(await asyncio.to_thread(working_machines)) - {own}), "")
    name = next(one for one in LEDGERS if one != writer)
    await asyncio.to_thread(end_ledger, name)
    new = await asyncio.to_thread(make_ledger, name, settings, machine=machine)
    try:
        await wait_until(new, "isStandby", START_TIMEOUT_S)  # (1)
    except HandoverFailed:
        await asyncio.to_thread(end_ledger, name)
        raise
    began_s = time.perf_counter()
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await handles[writer].hand_over.remote()  # (2)
    except (RayError, TimeoutError) as error:
        raise HandoverFailed(f"the writer does not release the lock: {error!r}") from error
    await wait_until(new, "isWriter", STEP_TIMEOUT_S)  # (3)
    log.info("ledger handed over to=%s ms=%.0f", name, (time.perf_counter() - began_s) * 1_000)
    await asyncio.to_thread(end_ledger, writer)  # (4)
    return name


async def _await_writer() -> tuple[dict[str, Any], str]:
    """Return the ledger's actors and the writer's name.

    Retries for `START_TIMEOUT_S`, because a writer may just be opening the ledger.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        handles = await asyncio.to_thread(existing_ledgers)
        try:
            return handles, await find_writer(handles)
        except HandoverFailed:
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(POLL_S)


async def find_writer(handles: Mapping[str, Any]) -> str:
    """Return the name of the actor that is the writer.

    Raises:
        HandoverFailed: no actor, or more than one, answers that it is the writer.
    """
    answers = await asyncio.gather(*(is_writer(handle) for handle in handles.values()))
    names = [name for name, is_one in zip(handles, answers, strict=True) if is_one]
    if len(names) != 1:
        raise HandoverFailed(f"got {len(names)} ledgers that claim to be the writer, expected 1")
    return names[0]


async def is_writer(handle: Any) -> bool | None:
    """Return whether a ledger actor is the writer; None if the actor does not answer."""
    answer = await ping(handle)
    return None if answer is None else bool(answer["isWriter"])


async def ping(handle: Any) -> dict[str, Any] | None:
    """Return the answer of a ledger actor to a ping; None if the actor does not answer."""
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            return dict(await handle.ping.remote())
    except (RayError, TimeoutError) as error:
        log.info("no answer of a ledger error=%r", error)
        return None


async def wait_until(handle: Any, state: str, timeout_s: float) -> None:
    """Wait until a ledger's actor answers that it is in a state.

    Args:
        handle: the actor.
        state: "isStandby" or "isWriter".
        timeout_s: the longest wait, seconds.

    Raises:
        HandoverFailed: the actor has not reached the state in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (answer := await ping(handle) or {}).get(state):
        if time.monotonic() > deadline_s:
            raise HandoverFailed(f"{state}: no such answer in {timeout_s:g} s, last was {answer}")
        await asyncio.sleep(POLL_S)
