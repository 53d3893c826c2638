"""Large replies are judged beside the owner's loop, with the events that it would have made."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from typing import Any

import orjson
import pytest

from actors.ports import DispatchOrder
from actors.values.handed_in_results import (
    HandedIn,
    HandedInDefect,
    HandedInFailure,
    HandedInResult,
    judge_handed_in,
)
from actors.values.reply_events import ReceivedReply, judge_received
from actors.values.value_child import judge_reply
from actors.values.value_process import JUDGED_IN_LOOP_BYTES_MAX, ValueProcess, ValueProcessEnded
from core.errors import NodeErrorCode
from core.workflow.events import AttemptFailed, AttemptSucceeded, Event
from tests.actors.dispatch.test_dispatcher import PATIENCE_S, replying, scene
from tests.actors.orders import order_to
from tests.platform.waiting import until

LARGE = "x" * JUDGED_IN_LOOP_BYTES_MAX


def an_order(payer_did: str = "did:x:payer", **fields: Any) -> DispatchOrder:
    """Return an order of a payer."""
    return order_to("http://a", secret="hush", timeout_ms=1_000, payer_did=payer_did, **fields)


def received(body: bytes, status: int = 200) -> ReceivedReply:
    """Return a reply as it came."""
    return ReceivedReply("e", status, "application/json", None, body, None, "sha256:in", 10, 20)


def reply_of(result: Any) -> bytes:
    """Return a good reply's body."""
    return orjson.dumps({"status": "success", "result": result})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (reply_of({"b": [1.0, 1e20], "a": LARGE}), 200),
        (reply_of([{}] * 10_000), 200),
        (b'{"status": "success", "result": ' + b"[" * 90 + b"]" * 90 + b"}", 200),
        (b"[" * 20_000, 200),
        (b'{"ok": true}', 200),
        (b"", 202),
        (orjson.dumps({"error": {"message": LARGE, "code": 7}}), 500),
        (orjson.dumps({"status": "success", "result": 1, "metrics": {"t": LARGE * 9}}), 200),
    ],
)
@pytest.mark.parametrize("is_verification", [False, True])
def test_the_event_is_the_one_that_is_made_in_the_loop(
    body: bytes, status: int, *, is_verification: bool
) -> None:
    order = an_order(is_verification=is_verification, verify_attempt=int(is_verification))
    here = judge_received(order, received(body, status))
    assert judge_reply(order, received(body, status), b"") == here


@pytest.mark.parametrize(
    ("chars", "in_child"), [(JUDGED_IN_LOOP_BYTES_MAX - 100, 0), (JUDGED_IN_LOOP_BYTES_MAX, 1)]
)
@pytest.mark.parametrize("status", [200, 400])
async def test_only_large_replies_are_judged_in_child(
    chars: int, in_child: int, status: int
) -> None:
    """An error's body is parsed as well: it held the loop as a result did."""
    async with scene(replying(status, status="success", result={"t": "x" * chars})) as here:
        event = await here.outcome()
        assert isinstance(event, AttemptSucceeded if status == 200 else AttemptFailed)
        if isinstance(event, AttemptSucceeded):
            assert event.result_json == '{"t":"' + "x" * chars + '"}'
        assert here.dispatcher.statistics().judged_in_child == in_child


def bad_call() -> None:
    """Raise in the process."""
    raise RuntimeError("of the call")


async def pid_of(process: ValueProcess) -> int:
    """Return the process's id."""
    return await asyncio.wait_for(process.call("", os.getpid), PATIENCE_S)


async def is_asked(process: ValueProcess) -> None:
    """Return when the process works on the only request: an idle one that ends is replaced."""
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: not process._waiting)
        for _ in range(100):  # turns of the loop until it is written
            await asyncio.sleep(0)


async def test_a_process_that_is_killed_fails_one_reply_without_blame_and_is_replaced() -> None:
    process = ValueProcess(lambda _: 1)
    body = received(reply_of(LARGE))
    try:
        first = await pid_of(process)
        os.kill(first, signal.SIGSTOP)
        waiting = asyncio.ensure_future(process.judge(an_order(), body))
        await asyncio.sleep(0)
        await is_asked(process)
        second = asyncio.ensure_future(process.judge(an_order(), body))
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ValueProcessEnded):
            await asyncio.wait_for(waiting, PATIENCE_S)
        assert isinstance(await asyncio.wait_for(second, PATIENCE_S), AttemptSucceeded)
        assert await pid_of(process) != first
    finally:
        process.close()
    assert process.pid is None


async def test_a_process_that_does_not_answer_is_replaced() -> None:
    process = ValueProcess(lambda _: 1)
    try:
        first = await pid_of(process)
        os.kill(first, signal.SIGSTOP)
        process._timeout_s = 0.05
        with pytest.raises(ValueProcessEnded):
            await asyncio.wait_for(process.judge(an_order(), received(b"{}")), PATIENCE_S)
        process._timeout_s = PATIENCE_S
        assert await pid_of(process) != first
    finally:
        process.close()


async def test_what_waits_for_a_process_that_is_closed_ends() -> None:
    """It waited for ever, and a later request started a process that was never ended."""
    process = ValueProcess(lambda _: 1)
    handed_in = HandedIn(body=b"{}", event_id="e", capability_id="c", is_verdict=False)
    waiting = [asyncio.create_task(process.judge_handed_in("a", handed_in)) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(process._waiting) == 2, "one was taken"
    process.close()
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE_S)
    assert [type(one) for one in found] == [ValueProcessEnded] * 3
    with pytest.raises(ValueProcessEnded):
        await asyncio.wait_for(process.judge_handed_in("a", handed_in), PATIENCE_S)


async def test_a_call_that_cannot_be_pickled_or_raises_fails_alone() -> None:
    judging = ValueProcess(lambda payer: 1)
    try:
        for call in (lambda: 1, bad_call):
            with pytest.raises(ValueProcessEnded):
                await asyncio.wait_for(judging.call("a", call), PATIENCE_S)
            assert await pid_of(judging)
    finally:
        judging.close()


async def test_a_process_that_ended_while_it_had_no_request_costs_none() -> None:
    """The next order lost its attempt to it."""
    process = ValueProcess(lambda _: 1)
    try:
        first = await pid_of(process)
        assert process._streams is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: process._streams[0].at_eof())
        assert await pid_of(process) != first
    finally:
        process.close()


async def test_a_process_that_cannot_be_started_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = ValueProcess(lambda _: 1)
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueProcessEnded):
        await process.judge(an_order(), received(b"{}"))
    assert os.listdir("/proc/self/fd") == before


async def test_an_order_whose_judging_fails_is_spared() -> None:
    async with scene(replying(status="success", result=LARGE)) as here:
        process = here.dispatcher._value_process
        pid = await pid_of(process)
        os.kill(pid, signal.SIGSTOP)
        process._timeout_s = 0.05
        event = await here.outcome()
        assert isinstance(event, AttemptFailed)
        assert (event.failure.code, event.failure.is_spared) == (NodeErrorCode.AGENT_ERROR, True)
        process._timeout_s = PATIENCE_S
        assert isinstance(await here.outcome(attempt=2), AttemptSucceeded)


async def test_payers_take_turns_and_what_is_aborted_is_not_judged() -> None:
    process = ValueProcess(lambda _: 1)
    ended: list[str] = []
    body = received(reply_of(1))

    async def judge(payer: str) -> Event:
        event = await process.judge(an_order(payer), body)
        ended.append(payer)
        return event

    try:
        await process.judge(an_order(), body)
        asked = [asyncio.ensure_future(judge("greedy")) for _ in range(4)]
        modest = asyncio.ensure_future(judge("modest"))
        await asyncio.sleep(0)
        asked.pop().cancel()
        await asyncio.wait_for(asyncio.gather(*asked, modest), PATIENCE_S)
    finally:
        process.close()
    assert ended[:2] in (["greedy", "modest"], ["modest", "greedy"])
    assert process.judged == 5


_OWNER = """
import asyncio, os
from actors.values.value_process import ValueProcess

async def main():
    process = ValueProcess(lambda _: 1)
    print(await process.call("", os.getpid), flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_process_ends_when_its_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        try:
            child = os.pidfd_open(int(owner.stdout.readline()))
        finally:
            owner.kill()
    try:
        ended, _, _ = select.select([child], [], [], PATIENCE_S)
        assert ended, "it lives on"
    finally:
        os.close(child)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (reply_of({"b": [1.0, 1e20], "a": LARGE}), HandedInResult),
        (reply_of({"approved": True, "why": LARGE}), HandedInResult),
        (orjson.dumps({"status": "error", "error": "no"}), HandedInFailure),
        (orjson.dumps({"status": "success", "result": 1, "signature": [LARGE]}), HandedInResult),
        (reply_of("\0"), HandedInDefect),
        (b'{"result":%d}' % 10**128, HandedInDefect),
        (b'{"ok": true}', HandedInDefect),
        (b"[" * 100_000, HandedInDefect),
    ],
)
@pytest.mark.parametrize("is_verdict", [False, True])
async def test_what_is_handed_in_is_judged_there_as_here(
    body: bytes, kind: type, *, is_verdict: bool
) -> None:
    handed_in = HandedIn(body=body, event_id="e", capability_id="cap.x.v1", is_verdict=is_verdict)
    here = judge_handed_in(handed_in)
    if not (is_verdict and kind is HandedInDefect):
        assert isinstance(here, kind)
    process = ValueProcess(lambda holder: 1)
    try:
        assert await process.judge_handed_in("did:x:agent", handed_in) == here
    finally:
        process.close()
