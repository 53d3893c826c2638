"""Large results at the process that uses them: stored first, waited for, kept within a bound."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pytest

from actors.dispatch.large_results import Blobs, large_body, store_large_result
from actors.ports import InputSources
from actors.values.value_process import JUDGED_IN_LOOP_BYTES_MAX
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.json_text import write_json
from core.records.manifest import parse_manifest
from core.workflow.dag import compile_workflow
from core.workflow.events import AttemptFailed, AttemptSucceeded, BlobRef, Event, WorkStarted
from tests.actors.dispatch.test_dispatcher import PATIENCE_S, WORKFLOW, replying, scene


@dataclass
class Shelf:
    """A store in memory that is away for the first calls."""

    away: int = 0
    stored: dict[str, bytes] = field(default_factory=dict)
    reads: int = 0

    async def put(self, body: bytes) -> str:
        self._refuse()
        name = "sha256:" + hashlib.sha256(body).hexdigest()
        self.stored[name] = body
        return name

    async def get(self, names: Collection[str]) -> dict[str, bytes]:
        self._refuse()
        self.reads += 1
        return {name: self.stored[name] for name in names if name in self.stored}

    def _refuse(self) -> None:
        if self.away > 0:
            self.away -= 1
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "away")


def succeeded(text: str) -> AttemptSucceeded:
    body = write_json({"text": text})
    name = "sha256:" + hashlib.sha256(body).hexdigest()
    return AttemptSucceeded("a", 1, body.decode(), "sha256:in", name, 0, 1)


def test_small_results_and_other_events_travel_as_they_are() -> None:
    for event in (succeeded("x" * 80), succeeded("x" * 20), WorkStarted("a", 1, 0)):
        assert large_body(event, 100) is None


async def test_size_is_counted_in_bytes_not_characters() -> None:
    event = succeeded("ä" * 50)
    body = large_body(event, 100)
    assert body is not None and len(body) > 100
    stored = await store_large_result(event, body, Blobs(Shelf(), cache_bytes_max=1_000))
    assert isinstance(stored, AttemptSucceeded) and stored.result_json is None


async def test_large_result_is_stored_before_its_event_goes_on_however_long_that_takes() -> None:
    shelf = Shelf(away=2)
    blobs = Blobs(shelf, cache_bytes_max=0)
    event = succeeded("x" * 200)
    body = large_body(event, 100)
    assert body is not None
    changed = await store_large_result(event, body, blobs)
    assert isinstance(changed, AttemptSucceeded)
    assert changed.result_ref == BlobRef(event.output_hash, len(event.result_json or ""))
    assert changed.result_json is None
    assert shelf.away == 0
    assert await blobs.load([changed.result_ref]) == {
        event.output_hash: (event.result_json or "").encode()
    }


async def test_a_result_used_again_is_not_read_again_within_the_bound() -> None:
    shelf = Shelf()
    blobs = Blobs(shelf, cache_bytes_max=250)
    refs = [await blobs.put(write_json(letter * 98)) for letter in "abc"]
    assert refs[0].size == 100
    await blobs.load(refs[1:])
    assert shelf.reads == 0, "the two stored last are at hand"
    await blobs.load([refs[0]])
    assert shelf.reads == 1
    assert (len(blobs._cached), blobs._cached_bytes) == (2, 200)


async def test_what_is_not_stored_is_said_so() -> None:
    with pytest.raises(LookupError, match="not stored"):
        await Blobs(Shelf(), cache_bytes_max=0).load([BlobRef("sha256:" + "0" * 64, 1)])


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_store_that_stays_away_is_waited_for_until_the_workflows_end(
    *, is_read: bool
) -> None:
    """An order waited for the store without end, when nothing came to abort it."""
    shelf = Shelf(away=1_000_000)
    blobs = Blobs(shelf, cache_bytes_max=0)
    reply = replying(status="success", result="x" * 2_000)
    node = compile_workflow(parse_manifest({"nodes": {"a": {"capabilityId": "cap.x"}}})).nodes["a"]
    stored = BlobRef("sha256:" + "0" * 64, 1)
    sources = InputSources(node, {}, stored if is_read else None)
    async with scene(reply, blobs=blobs, result_inline_bytes_max=1_024) as here:
        ended = await here.outcome(ends_ms=1, sources=sources)
        assert isinstance(ended, AttemptFailed)
        assert (ended.failure.code, ended.failure.is_spared) == (NodeErrorCode.AGENT_ERROR, True)
        assert here.dispatcher.statistics().in_flight == 0
        if not is_read:
            shelf.away = 1
            event = await here.outcome(ends_ms=2**53)
            assert isinstance(event, AttemptSucceeded) and event.result_ref is not None


@dataclass
class WatchedShelf(Shelf):
    """A store that notes what it is called for, and what comes beside a call that waits."""

    note: Callable[[str], None] = lambda what: None

    async def put(self, body: bytes) -> str:
        self.note("put")
        asyncio.get_running_loop().call_soon(self.note, "beside")
        for _ in range(2):
            await asyncio.sleep(0)
        self.note("put")
        return await super().put(body)

    async def get(self, names: Collection[str]) -> dict[str, bytes]:
        self.note("get")
        return await super().get(names)


async def test_what_an_order_does_after_it_has_waited_is_its_workflows_work() -> None:
    """The task of a large order had no name: what never ended in it ended one owner after the
    other, and counted against no workflow."""
    shelf = WatchedShelf()
    blobs = Blobs(shelf, cache_bytes_max=0)
    node = compile_workflow(parse_manifest({"nodes": {"a": {"capabilityId": "cap.x"}}})).nodes["a"]
    sources = InputSources(node, {}, await blobs.put(write_json("x" * 2_000)))
    reply = replying(status="success", result="x" * JUDGED_IN_LOOP_BYTES_MAX)
    seen: list[tuple[str, str]] = []
    async with scene(reply, blobs=blobs, result_inline_bytes_max=1_024) as here:
        ended = asyncio.Event()

        def note(what: str) -> None:
            seen.append((what, here.dispatcher._at_work.current))

        def receive(_: str, event: Event) -> None:
            note(type(event).__name__)
            if not isinstance(event, WorkStarted):
                ended.set()

        shelf.note = note
        here.dispatcher.send(here.order(sources=sources), receive)
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        note("afterwards")
    named = ["WorkStarted", "get", "put", "beside", "put", "AttemptSucceeded", "afterwards"]
    others = ("beside", "afterwards")
    assert seen == [(what, "" if what in others else WORKFLOW) for what in named]
