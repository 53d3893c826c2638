"""Agents that declined are left out for a while, for all payers; what those ask that are not.

money.md (Estimate, Full agents).
"""

from __future__ import annotations

from actors.directory.agent_directory import Directory
from actors.directory.health.declines import AGENTS_MAX, LEFT_OUT_MS_MAX, Declines
from actors.ports import AskingPrices
from core.market.agent_liveness import Liveness
from core.market.pricing import TokenPrice
from core.workflow.events import AgentNotSelected, AgentSelected
from tests.actors.directory.test_agent_directory import CAPABILITY, directory, row, select

A, B = "did:x:a", "did:x:b"
RATES = {"model": "per-token", "inputRate": "0.1", "outputRate": "0.1"}


def taker(known: Directory, at_ms: int) -> str | None:
    """Return who takes a node, None where it waits for one that may come back."""
    answer = known.select(select(), at_ms)
    if isinstance(answer, AgentSelected):
        return answer.agent_did
    assert isinstance(answer, AgentNotSelected)
    assert answer.failure.is_temporary
    return None


def test_an_agent_is_left_out_for_longer_with_each_decline_in_a_row() -> None:
    known, at_ms = Declines(), 0
    for left_out_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        assert known.note_declined(A, 0, at_ms) == at_ms + left_out_ms
        assert known.note_declined(A, 0, at_ms + 1) is None, "it was on its way"
        assert known.next_change_ms(A, at_ms) == at_ms + left_out_ms
        at_ms += left_out_ms
        assert not known.is_full(A, at_ms)
    assert left_out_ms == LEFT_OUT_MS_MAX
    assert known.note_declined(A, 5_000, at_ms) == at_ms + 5_000, "as long as it says"
    known.note_registered(A)
    assert not known.is_full(A, at_ms)
    known.forget(A)
    assert known.note_declined(A, 0, at_ms) == at_ms + 1_000


def test_of_very_many_the_one_that_declined_longest_ago_is_forgotten() -> None:
    known = Declines()
    for number in range(AGENTS_MAX + 1):
        known.note_declined(f"did:x:{number}", 0, 0)
    assert "did:x:0" not in known
    assert "did:x:1" in known


def test_a_full_agent_is_waited_for_until_its_time_is_over_or_it_takes_work() -> None:
    known = directory(row(A))
    woken: list[str] = []
    known.on_changed = lambda did, offered: woken.append(did)
    assert known.note_declined(A, 3_000, 100) == 3_100
    assert taker(known, 3_099) is None
    assert not known.may_end_wait(A, CAPABILITY, 3_099)
    known.note_back(A)
    assert woken[-1] == A
    assert known.may_end_wait(A, CAPABILITY, 3_100)
    assert taker(known, 3_100) == A
    known.note_declined(A, 3_000, 3_200)
    known.note_taken(A)
    assert taker(known, 3_201) == A
    failed = known.note_declined(A, 3_000, 3_300)
    assert failed == 6_300
    target = known.select(select(target_agent_id=A), 3_301)
    assert isinstance(target, AgentSelected), "a payer that names it may have it"


def test_a_full_agent_gives_way_and_its_rank_falls() -> None:
    known = directory(row(A), row(B))
    assert taker(known, 0) == A
    known.note_declined(A, 0, 0)
    assert taker(known, 1) == B
    assert taker(known, 1_000) == B, "it did not take what it was asked"
    assert known.standings.ranked(A).score < known.standings.ranked(B).score


def test_a_burst_of_declines_lowers_the_rank_once() -> None:
    """A rival that sends more than the agent takes would have it ranked last for everybody."""
    known = directory(row(A))
    for at_ms in range(20):  # each asks for a little longer
        known.note_declined(A, 1_000, at_ms)
    assert known.standings.ranked(A).total == 1
    known.note_declined(A, 1_000, 1_019)
    assert known.standings.ranked(A).total == 2


# -- prices ---------------------------------------------------------------------------------------


def lowest(known: Directory, at_ms: int = 0) -> tuple[int | None, int | None]:
    """Return the lowest price and the lowest positive one of agents that can take work."""
    found = known.available_prices(CAPABILITY, "", at_ms)
    return found.cheapest_micro, found.positive_micro


def test_the_lowest_prices_are_those_of_agents_that_can_take_work() -> None:
    known = directory(row(A, cents=0), row(B, cents=3), row("did:x:dear", cents=10**11))
    by_token = {"id": CAPABILITY, "pricing": RATES}
    known.put([row("did:x:t", card={"capabilities": [by_token]})])
    assert lowest(known) == (0, 30_000)
    assert known.available_prices(CAPABILITY, "", 0).dearest_micro == 10**15
    assert isinstance(known.available_prices(CAPABILITY, "", 0).by_token, TokenPrice)
    known.note_declined(B, 0, 0)
    assert lowest(known) == (0, 10**15)
    known.note_declined(A, 0, 0)
    assert lowest(known) == (10**15, 10**15)
    assert lowest(known, 1_000) == (0, 30_000)
    gone = Liveness("offline", heartbeat_ms=1_000)
    known.apply_liveness({A: gone, B: gone, "did:x:dear": gone})
    assert lowest(known, 1_001) == (0, 30_000), "where none can, of those that are away"


def test_agents_that_a_node_may_not_take_have_no_part_in_the_lowest_prices() -> None:
    """An agent that promised too late a result, or accepted no other verifier, was the cheapest."""
    slow = {"id": CAPABILITY, "price_cents": 1, "etaMs": 60_000}
    shy = {"capabilities": [{"id": CAPABILITY, "price_cents": 2}]}
    judge = row(
        "did:x:judge",
        owner="did:x:else",
        card={"capabilities": [{"id": "cap.judge.v1"}]},
        is_trusted=False,
    )
    open_to_any = {"capabilities": [{"id": CAPABILITY, "price_cents": 3}]}
    open_to_any["acceptedVerifiers"] = "any"
    known = directory(
        row(A, card={"capabilities": [slow]}), row(B, card=shy), row("did:x:any", card=open_to_any),
        judge,
    )  # fmt: skip
    asked = {"timeout_ms": 30_000, "verifier_capability_id": "cap.judge.v1"}
    for limits, micro in (
        ({}, 10_000), ({"timeout_ms": 30_000}, 20_000), (asked, 30_000),
    ):  # fmt: skip
        found = known.available_prices(CAPABILITY, "", 0, **limits)
        assert found.cheapest_micro == found.positive_micro == micro, limits


def test_of_trusted_agents_the_lowest_price_is_no_strangers() -> None:
    """A stranger that asks little would leave out the verifiers that may judge."""
    stranger, judge = row(A, is_trusted=False), row(B, cents=40)
    for rows, micro in ([stranger, judge], 400_000), ([stranger], None):
        found = directory(*rows).available_prices(CAPABILITY, "", 0, is_trusted=True)
        assert found.cheapest_micro == found.positive_micro == micro


def test_a_target_has_a_price_of_its_own_and_unknown_capabilities_have_none() -> None:
    known = directory(row(A, cents=5))
    assert known.asking_prices(CAPABILITY, A) == AskingPrices(None, 50_000)
    assert known.asking_prices("cap.none", None) == AskingPrices()
    assert known.available_prices("cap.none", "", 0) == AskingPrices()
