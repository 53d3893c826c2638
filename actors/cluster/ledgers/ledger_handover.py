"""The planned hand-over of the ledger to another process: no request is refused by it.

Steps: (1) a process that is no writer opens warm under the name that is free; (2) the writer
finishes its batch and holds what comes; (3) the new one takes the head by compare-and-set; (4) the
old one closes its connections, so that callers find the new address and repeat what was not
answered, under the same keys; (5) it ends. Whatever fails before (3), the writer goes on when its
hold is over. From (3) on the new one is the writer, whatever becomes of the rest: the old one is
fenced off by its epoch. When the answer to (3) is late, the head may be taken yet: the new process
is asked whether it was, and never ended, for there might be no ledger then. shards.md (Ledger).
Decision 0211.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from ray.exceptions import RayError

from actors.cluster.ledgers.ledger_slots import end_ledger, existing_ledgers, make_ledger
from actors.transport.names import LEDGERS
from core.settings import Settings

log = logging.getLogger("callboard.ledger")

WARM_TIMEOUT_S: Final = 60.0
STEP_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.1


class HandoverFailed(Exception):
    """The ledger was not handed over; it is where it was, or where the head is taken late."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the ledger was not handed over: {self.reason}"


async def hand_over_ledger(settings: Settings, *, machine: str = "", **options: Any) -> str:
    """Let a new process be the ledger, and end the one that is it now.

    From any process of the cluster. A standby that exists is ended first, because it may be of
    other code; the timekeeper starts one again where there are several machines.

    Args:
        settings: of the new process.
        machine: Ray's id of the machine where it runs; "": any.
        options: of Ray for the new process, such as `runtime_env`.

    Returns:
        the new actor's name.

    Raises:
        HandoverFailed: there is no writer that answers, the new process was not ready within
            `WARM_TIMEOUT_S`, or the head was not taken in time; the ledger goes on where it was,
            and in the last case the new process stays beside it as a standby.
    """
    handles = await asyncio.to_thread(existing_ledgers)
    writer = await find_writer(handles)
    name = next(one for one in LEDGERS if one != writer)
    await asyncio.to_thread(end_ledger, name)
    new = await asyncio.to_thread(make_ledger, name, settings, machine=machine, **options)
    try:
        await _wait_warm(new)  # (1)
        began_s = time.perf_counter()
        await _step(handles[writer].hold.remote(), "the writer does not hold its batches")  # (2)
    except HandoverFailed:
        await asyncio.to_thread(end_ledger, name)
        raise
    await take_head(new)  # (3)
    try:
        await _step(handles[writer].release.remote(), "the old one does not close")  # (4)
    except HandoverFailed as error:  # it ends all the same
        log.warning("handed over, but: %s", error.reason)
    log.info("ledger handed over to=%s ms=%.0f", name, (time.perf_counter() - began_s) * 1_000)
    await asyncio.to_thread(end_ledger, writer)  # (5)
    return name


async def find_writer(handles: Mapping[str, Any]) -> str:
    """Return the name of the actor that is the writer.

    One that was replaced says so, too, until it has noticed that: the other must not be ended.

    Raises:
        HandoverFailed: not exactly one says so.
    """
    answers = await asyncio.gather(*(is_writer(handle) for handle in handles.values()))
    names = [name for name, is_one in zip(handles, answers, strict=True) if is_one]
    if len(names) != 1:
        raise HandoverFailed(f"got {len(names)} ledgers that say to be the writer, expected 1")
    return names[0]


async def is_writer(handle: Any) -> bool | None:
    """Say whether a ledger's actor says that it is the writer; None when it says nothing."""
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            return bool((await handle.ping.remote())["isWriter"])
    except (RayError, TimeoutError) as error:
        log.info("no answer of a ledger error=%r", error)
        return None


async def take_head(new: Any) -> None:
    """Let a warm process take the head; return when it has.

    Raises:
        HandoverFailed: it has not within `STEP_TIMEOUT_S`; it may yet.
    """
    try:
        await _step(new.take_over.remote(), "the head was not taken in time")
    except HandoverFailed:
        if not await is_writer(new):
            raise


async def _wait_warm(new: Any) -> None:
    """Return when a new process knows the head."""
    deadline_s = time.monotonic() + WARM_TIMEOUT_S
    reason = "it does not answer"
    while time.monotonic() < deadline_s:
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                if (await new.ping.remote())["isWarm"]:
                    return
                reason = "it has not read the head"
        except (RayError, TimeoutError) as error:
            reason = repr(error)
        await asyncio.sleep(POLL_S)
    raise HandoverFailed(f"the new process is not ready after {WARM_TIMEOUT_S} s: {reason}")


async def _step(answer: Awaitable[None], failure: str) -> None:
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await answer
    except (RayError, TimeoutError) as error:
        raise HandoverFailed(f"{failure}: {error!r}") from error
