"""Large replies are judged beside the owner's loop, with the events that it would have made."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from actors.ports import DispatchOrder
from actors.transport.wire import Unencodable
from actors.values.handed_in_results import (
    HandedIn,
    HandedInDefect,
    HandedInFailure,
    HandedInResult,
    judge_handed_in,
)
from actors.values.reply_events import ReceivedReply, judge_received
from actors.values.value_child import (
    EVENTS,
    LENGTH_BYTES,
    LENGTH_ORDER,
    REQUESTS,
    ReplyOfOrder,
    answer_frame,
)
from actors.values.value_process import JUDGED_IN_LOOP_BYTES_MAX, ValueProcess, ValueProcessEnded
from core.errors import NodeErrorCode
from core.workflow.events import AttemptFailed, AttemptSucceeded, Event
from tests.actors.dispatch.test_dispatcher import PATIENCE_S, replying, scene

pytestmark = pytest.mark.anyio

LARGE = "x" * JUDGED_IN_LOOP_BYTES_MAX


def an_order(payer_did: str = "did:x:payer", **fields: Any) -> DispatchOrder:
    """Return an order of a payer."""
    return DispatchOrder(
        "0198c0de-0000-7000-8000-000000000001", "t", "a", 1, "cap.x.v1", "did:x:a",
        "http://a/node", "http://a/cancel", "hush", 1_000,
        payer_did=payer_did, **fields,
    )  # fmt: skip


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
    bare = an_order(is_verification=is_verification, verify_attempt=int(is_verification))
    asked = ReplyOfOrder(bare, received(body, status))
    there = EVENTS.decode(answer_frame(REQUESTS.encode(asked)))
    assert there == here


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


async def has_asked(process: ValueProcess) -> None:
    """Return when the process has a request to answer: an idle one that ends is only replaced."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(turn.request.done() for turn in process._open):
            await asyncio.sleep(0)
        for _ in range(10):  # the turns of the loop until it is written
            await asyncio.sleep(0)


async def test_a_process_that_is_killed_fails_one_reply_without_blame_and_is_replaced() -> None:
    process = ValueProcess(lambda _: 1)
    body = received(reply_of(LARGE))
    try:
        await process.judge(an_order(), body)
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        waiting = asyncio.ensure_future(process.judge(an_order(), body))
        second = asyncio.ensure_future(process.judge(an_order(), body))
        await has_asked(process)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ValueProcessEnded):
            await asyncio.wait_for(waiting, PATIENCE_S)
        assert isinstance(await asyncio.wait_for(second, PATIENCE_S), AttemptSucceeded)
        assert process.pid not in (None, first)
    finally:
        process.close()
    assert process.pid is None


async def test_a_process_that_does_not_answer_is_replaced() -> None:
    process = ValueProcess(lambda _: 1)
    try:
        await process.judge(an_order(), received(b"{}"))
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        process._timeout_s = 0.05
        with pytest.raises(ValueProcessEnded):
            await asyncio.wait_for(process.judge(an_order(), received(b"{}")), PATIENCE_S)
        process._timeout_s = PATIENCE_S
        await process.judge(an_order(), received(b"{}"))
        assert process.pid not in (None, first)
    finally:
        process.close()


async def test_a_process_that_ended_while_it_had_no_request_costs_none() -> None:
    """The next order lost its attempt to it."""
    process = ValueProcess(lambda _: 1)
    try:
        await process.judge(an_order(), received(b"{}"))
        first = process.pid
        assert first is not None and process._streams is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while not process._streams[0].at_eof():
                await asyncio.sleep(0.001)
        await process.judge(an_order(), received(b"{}"))
        assert process.pid not in (None, first)
    finally:
        process.close()


class AnsweringWriter:
    """The stream to a process that answers when it has a whole request; counts what is written."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Take a piece."""
        self.writes.append(data)
        sent = b"".join(self.writes)
        if len(sent) > LENGTH_BYTES:
            assert len(sent) - LENGTH_BYTES == int.from_bytes(sent[:LENGTH_BYTES], LENGTH_ORDER)
            answer = answer_frame(sent[LENGTH_BYTES:])
            self._reader.feed_data(len(answer).to_bytes(LENGTH_BYTES, LENGTH_ORDER) + answer)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Take pieces, as one."""
        self.write(b"".join(pieces))

    async def drain(self) -> None:
        """Wait for nothing."""

    def close(self) -> None:
        """Close nothing."""


async def test_a_request_is_one_write() -> None:
    """Else the process wakes for the length alone."""
    process, reader = ValueProcess(lambda _: 1), asyncio.StreamReader()
    writer = AnsweringWriter(reader)
    process._streams = (reader, writer)  # type: ignore[assignment]
    try:
        event = await asyncio.wait_for(process.judge(an_order(), received(b"{}")), PATIENCE_S)
        assert isinstance(event, AttemptFailed)
        assert len(writer.writes) == 1
    finally:
        process.close()


class BrokenWriter:
    """A stream of a transport that raises what no stream should."""

    def writelines(self, _: Iterable[bytes]) -> None:
        raise RuntimeError("a transport of uvloop")

    def close(self) -> None:
        """Close nothing."""


async def test_any_exception_of_the_process_is_an_answer_and_the_next_request_is_served() -> None:
    """It ended the turns: the request, which has no deadline of its own, was never answered."""
    process = ValueProcess(lambda _: 1)
    process._streams = (asyncio.StreamReader(), BrokenWriter())  # type: ignore[assignment]
    try:
        asked = [asyncio.create_task(process.judge(an_order(), received(b"{}"))) for _ in range(2)]
        first, second = await asyncio.wait_for(
            asyncio.gather(*asked, return_exceptions=True), PATIENCE_S
        )
        assert isinstance(first, ValueProcessEnded) and isinstance(second, AttemptFailed)
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
    assert process.pid is None


async def test_a_request_is_written_in_its_turn_and_fails_alone() -> None:
    """100 replies of 1 MiB at once were all written before the loop turned: 270 ms of CPU."""
    judging = ValueProcess(lambda payer: 1)
    ended: list[str] = []

    async def judge(name: str, reply: ReceivedReply) -> None:
        try:
            await judging.judge(an_order(name), reply)
        except Unencodable as error:
            frames = traceback.extract_tb(error.__traceback__)
            assert "_take_turns" not in {frame.name for frame in frames}, "its caller writes it"
            ended.append(f"{name} cannot be written")
        else:
            ended.append(name)

    good = received(reply_of(LARGE))
    bad = replace(good, content_type="\ud800")
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(judge("first", good), judge("second", bad), judge("third", good))
    finally:
        judging.close()
    assert ended == ["first", "second cannot be written", "third"]


async def test_an_order_whose_judging_fails_is_spared() -> None:
    async with scene(replying(status="success", result=LARGE)) as here:
        process = here.dispatcher._value_process
        await process.judge(an_order(), received(b"{}"))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        ending = asyncio.ensure_future(here.outcome())
        await has_asked(process)
        os.kill(process.pid, signal.SIGKILL)
        event = await ending
        assert isinstance(event, AttemptFailed)
        assert (event.failure.code, event.failure.is_spared) == (NodeErrorCode.AGENT_ERROR, True)
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


def test_the_process_ends_with_its_owners_socket() -> None:
    """So it also ends when its owner is killed."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "actors.values.value_child"]
        process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
    ours.close()
    assert process.wait(PATIENCE_S) == 0


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
