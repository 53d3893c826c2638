"""How often a model is asked, by whom, and that no place stays taken."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from core.settings import Settings
from core.trust.access import BY_ADDRESS, FREE_TIER, Principal
from serve_app.operations.work.model_drafts import ModelDrafts, NoModelDraft, model_drafts_of
from tests.core.planning.test_plan import OFFERS
from tests.platform.stub_model import RawReply, StubModel, stub_model

SAYS = "fetch the page"
DRAFT = orjson.dumps({"nodes": [{"name": "a", "capability": "cap.web.fetch.v1"}]}).decode()


def caller(name: str, **more: Any) -> Principal:
    """Return a caller with an account."""
    return Principal(f"did:x:{name}", f"key-{name}", frozenset(), **more)


def drafts_of(stub: StubModel, **more: Any) -> ModelDrafts:
    """Return what asks this model."""
    drafts = model_drafts_of(Settings(model_url=stub.url, model_name="m-1"), **more)
    assert drafts is not None
    return drafts


async def nodes(drafts: ModelDrafts, who: Principal, clock_ms: int = 0) -> list[str]:
    """Return the nodes of the model's draft."""
    return list((await drafts.propose(SAYS, OFFERS, who, clock_ms)).nodes())


def test_without_an_address_there_is_no_model() -> None:
    assert model_drafts_of(Settings()) is None


def test_a_caller_has_so_many_calls_a_minute() -> None:
    async def calls(drafts: ModelDrafts) -> None:
        for _ in range(2):
            assert await nodes(drafts, caller("a")) == ["fetch"]
        with pytest.raises(NoModelDraft, match="used up"):
            await nodes(drafts, caller("a"))
        assert await nodes(drafts, caller("b")) == ["fetch"]
        assert await nodes(drafts, caller("a"), 60_000) == ["fetch"]

    with stub_model(lambda _: DRAFT) as stub:
        asyncio.run(calls(drafts_of(stub, rate=2)))
    assert len(stub.asked) == 4


def test_places_are_shared_and_given_back_by_those_who_leave() -> None:
    async def calls(stub: StubModel) -> None:
        drafts = drafts_of(stub, calls_max=2)
        waiting = asyncio.ensure_future(nodes(drafts, caller("a")))
        await asyncio.to_thread(stub.wait_asked)
        with pytest.raises(NoModelDraft, match="busy"):
            await nodes(drafts, caller("a"))
        others = asyncio.ensure_future(nodes(drafts, caller("b")))
        await asyncio.to_thread(stub.wait_asked)
        with pytest.raises(NoModelDraft, match="busy"):
            await nodes(drafts, caller("c"))
        assert repr(drafts) == "<ModelDrafts of m-1 <Shares 2/2 holders=2>>"
        for one in (waiting, others):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
        assert repr(drafts) == "<ModelDrafts of m-1 <Shares 0/2 holders=0>>"

    with stub_model(None) as stub:
        asyncio.run(calls(stub))
        stub.wait_left()
        stub.wait_left()
    assert len(stub.asked) == 2


@pytest.mark.parametrize(
    "who",
    [caller("a", is_stranger=True), Principal(FREE_TIER, FREE_TIER, frozenset(), BY_ADDRESS)],
    ids=["stranger", "free tier"],
)
def test_callers_without_an_account_do_not_reach_the_model(who: Principal) -> None:
    with stub_model(lambda _: DRAFT) as stub, pytest.raises(NoModelDraft, match="account"):
        asyncio.run(nodes(drafts_of(stub), who))
    assert stub.asked == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [(RawReply(500), "did not answer"), ("no draft", "not used: its form is not")],
)
def test_why_there_is_no_draft_is_told_without_addresses(answer: str | RawReply, why: str) -> None:
    async def calls(drafts: ModelDrafts) -> None:
        with pytest.raises(NoModelDraft, match=why) as reason:
            await nodes(drafts, caller("a"))
        assert "127.0.0.1" not in str(reason.value)
        assert "holders=0" in repr(drafts)

    with stub_model(lambda _: answer) as stub:
        asyncio.run(calls(drafts_of(stub)))
