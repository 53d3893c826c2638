"""Choices by kept rankings are those of weighing every agent anew at each choice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from actors.directory import ranked_offers
from actors.directory.agent_directory import Directory
from actors.directory.health.circuits import CIRCUIT_OPEN_MS_MIN
from actors.directory.ranked_offers import TERMS_MAX
from actors.ports import Contact
from core.market import ranked_candidates
from core.market.agent_liveness import HEARTBEAT_TTL_MS, PROBE_TTL_MS, Liveness
from core.market.pricing import FixedPrice, Price, TokenPrice
from core.market.ranked_candidates import POOL_MAX, RankedCandidates
from core.market.ranking import SHOWN_MAX, RankingRules, render_reasons
from core.workflow.actions import SelectAgent, SelectVerifier
from core.workflow.events import AgentNotSelected, AgentSelected, VerifierSelected
from tests.actors.directory.full_directory import FullDirectory
from tests.actors.directory.test_agent_directory import CAPABILITY, KEYS, paid, row, select

OTHER = "cap.other.v1"
PAYERS = ("p", "q")
# The steps of time at which something ends, and a clock that is set back.
TIMES_MS = (
    0, 1, 1, 1, 2_000, CIRCUIT_OPEN_MS_MIN, HEARTBEAT_TTL_MS, HEARTBEAT_TTL_MS + 1, PROBE_TTL_MS,
    -1, -HEARTBEAT_TTL_MS,
)  # fmt: skip
MONEY_MICRO = (0, 4_000, 10_000, 20_000, 30_000, 10**9)
Answer = AgentSelected | AgentNotSelected | VerifierSelected


class Pair:
    """A directory and one that weighs all, to which the same happens.

    Args:
        random: draws what happens.
        agents: how many there may be.
    """

    def __init__(self, random: Random, agents: int) -> None:
        self.random = random
        self.dids = [f"did:x:{number}" for number in range(agents)]
        # Of very many, a trial goes to another one where some may not be taken.
        self.are_few = agents <= ranked_candidates.POOL_MAX
        trial_share_bps = random.choice((0, 1_000, 10_000)) if self.are_few else 0
        rules = RankingRules(trial_tasks=3, trial_share_bps=trial_share_bps)
        arguments: dict[str, Any] = {
            "service": "callboard",
            "deployment_keys": KEYS,
            "default_secret": None,
            "max_concurrency": 2,
            "rules": rules,
            "stake_bps": random.choice((0, 5_000, 5_000)),
        }
        # In a millisecond, choices by one registered price share what is kept.
        self.is_at_once = random.random() < 0.5
        self.by_token_share = random.choice((0.05, 0.3, 0.9))
        self.kept, self.full = Directory(**arguments), FullDirectory(**arguments)
        # For what concerns verifiers alone.
        self.verifying = Random(len(self.dids))
        self.at_ms = 10 * PROBE_TTL_MS
        self.compared = self.differing = 0

    def both(self, change: Callable[[Directory], object]) -> None:
        for known in (self.kept, self.full):
            change(known)

    def did(self) -> str:
        return self.random.choice(self.dids)

    # -- changes ----------------------------------------------------------------------------------

    def change(self) -> None:
        """Let something happen."""
        self.at_ms += self.random.choice((0, 0, 1) if self.is_at_once else TIMES_MS)
        changes = (
            self.register, self.hear, self.hear, self.count, self.stake, self.revoke, self.begin,
            self.begin, self.begin, self.end, self.end, self.fail, self.set_price, self.be_away,
            self.hear_all,
        )  # fmt: skip
        self.random.choice(changes)()

    def register(self, did: str | None = None) -> None:
        made = self.card(did or self.did())
        self.both(lambda known: known.put([made]))

    def card(self, did: str) -> dict[str, Any]:
        random = self.random
        price: dict[str, Any] = random.choice(({}, {"price_cents": random.randint(0, 4)}))
        if random.random() < self.by_token_share:
            rates = {"inputRate": random.choice(("0", "0.000005")), "outputRate": "0.00001"}
            price = {"pricing": {"model": "per-token", **rates}}
        eta = self.verifying.choice(({}, {}, {"etaMs": 500}, {"etaMs": 20_000}))
        capabilities = [{"id": CAPABILITY, **price, **eta}]
        if random.random() < 0.3:
            capabilities.insert(0, {"id": OTHER, "price_cents": 1})
        card = {"capabilities": capabilities, "maxConcurrency": random.choice((1, 1, 2, 3, None))}
        listed = self.verifying.choices(self.dids, k=2)
        card["acceptedVerifiers"] = self.verifying.choice((None, "trusted", "any", "any", listed))
        return row(
            did,
            owner=f"did:x:owner{random.randint(0, 2)}",
            card=card,
            status=random.choice(("active",) * 9 + ("inactive",)),
            endpoint=random.choice(("http://127.0.0.1:9000",) * 9 + ("",)),
            updated_ms=random.choice((0, self.at_ms)),
            is_trusted=self.verifying.random() < 0.4,
        )

    def hear(self) -> None:
        random, at_ms = self.random, self.at_ms
        live = Liveness(
            random.choice(("healthy", "busy", "unhealthy", "draining", None)),
            random.choice((None, 0.0, 0.25, 0.5, 1.0)),
            random.choice((None, at_ms, at_ms, at_ms - HEARTBEAT_TTL_MS)),
            random.choice((None, None, at_ms, at_ms - PROBE_TTL_MS + 2)),
            random.choice((True, False)),
        )
        did = self.did()
        self.both(lambda known: known.apply_liveness({did: live}))

    def hear_all(self) -> None:
        lives = {
            did: Liveness("healthy", self.random.choice((0.0, 0.5, 1.0)), self.at_ms)
            for did in self.dids
        }
        self.both(lambda known: known.apply_liveness(lives))

    def count(self) -> None:
        tally = paid(
            successful=self.random.randint(0, 3),
            failed=self.random.randint(0, 2),
            latency_ms_sum=self.random.randint(0, 100_000),
        )
        did = self.did()
        self.both(lambda known: known.standings.apply_tallies({did: tally}))

    def stake(self, did: str | None = None) -> None:
        of = did or self.did()
        parts = self.random.choice(MONEY_MICRO), self.random.choice(MONEY_MICRO)
        self.both(lambda known: known.stakes.apply_parts({of: parts}))

    def revoke(self) -> None:
        revocation = {
            "did": self.did(),
            "expires_ms": self.random.choice((None, self.at_ms + 1, self.at_ms + 2_000)),
            "ended_ms": self.random.choice((None, self.at_ms, self.at_ms)),
        }
        self.both(lambda known: known.revocations.apply_rows([revocation]))

    def begin(self) -> None:
        did = self.did()
        self.both(lambda known: known.begin(did))

    def end(self) -> None:
        self.note(self.random.choice(list(Contact)))

    def fail(self) -> None:
        contact = self.random.choice((Contact.UNREACHABLE, Contact.UNANSWERED))
        did, payer = self.did(), self.random.choice(PAYERS)
        for _ in range(3):
            self.note(contact, did, payer)

    def note(self, contact: Contact, did: str | None = None, payer: str | None = None) -> None:
        did, payer = did or self.did(), payer or self.random.choice(PAYERS)
        self.both(lambda known: known.note_outcome(did, contact, self.at_ms, payer_did=payer))

    def set_price(self) -> None:
        prices = {CAPABILITY: self.price() or FixedPrice(0)}
        if isinstance(prices[CAPABILITY], FixedPrice):
            self.both(lambda known: known.apply_prices(prices))

    def price(self) -> Price | None:
        if self.is_at_once and self.random.random() < 0.9:
            return None
        by_token = TokenPrice(Decimal("0.00001"), Decimal("0.00001"))
        fixed = FixedPrice(self.random.choice((0, 10_000, 20_000)))
        return self.random.choice((None, None, fixed, fixed, by_token))

    def be_away(self) -> None:
        if self.random.random() < 0.2:
            self.both(lambda known: known.count_silence_from(self.at_ms))

    # -- choices ----------------------------------------------------------------------------------

    def choose(self) -> None:
        """Let both answer a selection, and compare what they say."""
        random = self.random
        payer = random.choice((*PAYERS, ""))
        payer = self.verifying.choice((payer, payer, "did:x:owner0"))
        excluded = random.choice((0, 0, 0, 1, 2))
        exclude = tuple(self.did() for _ in range(excluded))
        capability_id = random.choice((CAPABILITY, CAPABILITY, OTHER))
        limit_micro = random.choice((10**9, 10**9, 0, 10_000, 20_000, random.randint(0, 60_000)))
        if random.random() < 0.2:
            looking = select(
                capability_id=capability_id,
                target_agent_id=random.choice((None, self.did(), "did:x:unknown")),
                allow_fallback=random.choice((False, True)),
                verifier_capability_id=self.verifying.choice(("", "", CAPABILITY, OTHER)),
                timeout_ms=self.verifying.choice((None, None, None, 100, 60_000)),
            )
            self.look(looking, payer)
            return
        if random.random() < 0.3:
            is_verifier_chosen = self.verifying.random() < 0.5
            verifying = SelectVerifier(
                "n", capability_id, self.did(), exclude, limit_micro, is_verifier_chosen
            )
            self.compare(
                lambda known: known.select_verifier(verifying, self.at_ms, payer_did=payer)
            )
            return
        action = select(
            capability_id=capability_id,
            target_agent_id=random.choice((None, None, None, None, self.did())),
            allow_fallback=False,
            exclude=exclude,
            price_max_micro=limit_micro,
            workflow_id=f"w{random.randint(0, 10**6)}",
            price=self.price(),
            is_by_token=random.random() < (0.9 if self.is_at_once else 0.5),
            verifier_capability_id=self.verifying.choice(("", "", CAPABILITY, OTHER)),
            timeout_ms=self.verifying.choice((None, None, None, 100, 60_000)),
        )
        assert isinstance(action, SelectAgent)
        self.compare(lambda known: known.select(action, self.at_ms, payer_did=payer))

    def compare(self, choose: Callable[[Directory], Answer]) -> None:
        kept, full = choose(self.kept), choose(self.full)
        self.compared += 1
        if shown(kept) == shown(full):
            return
        # Of very many only some are weighed anew while another price is the lowest.
        assert not self.are_few
        assert isinstance(kept, AgentSelected | VerifierSelected)
        assert isinstance(full, AgentSelected | VerifierSelected)
        self.differing += 1
        assert kept.agent_did in self.full.open_dids

    def look(self, action: SelectAgent, payer_did: str) -> None:
        """Let both answer a dry run, and compare what they say."""
        kept, full = (
            known.list_available_agents(action, self.at_ms, payer_did=payer_did)
            for known in (self.kept, self.full)
        )
        if len(self.dids) <= SHOWN_MAX:
            assert sorted(kept[0]) == sorted(full[0])
        else:
            target = action.target_agent_id
            # One that asks too much comes as the others do.
            if target and not self.full._find_target_failure(action, self.at_ms, payer_did):
                assert kept[0][0] == full[0][0] == target
            assert len(set(kept[0])) == len(kept[0]) == len(full[0])
            assert set(kept[0]) <= self.full.open_dids
        assert (kept[1] and kept[1].code) == (full[1] and full[1].code)
        assert (kept[1] and kept[1].details) == (full[1] and full[1].details)


def shown(answer: Answer) -> object:
    """Return what an answer says, with rendered reasons and without the words of a failure."""
    if isinstance(answer, AgentNotSelected):
        return answer.failure.code, answer.failure.details
    if isinstance(answer, VerifierSelected) or answer.selection_json is None:
        return answer
    reasons = json.loads(render_reasons(answer.selection_json))
    return answer.agent_did, answer.price_micro, answer.token_price, answer.stake_micro, reasons


# A seed, since shrinking what happens to a pair would take minutes and leave nothing simpler.
@pytest.mark.parametrize("moved_max", [ranked_offers.MOVED_MAX, 0])
@given(seed=st.integers(0, 2**32), agents=st.sampled_from((1, 2, 3, 6, 14, 40)))
@settings(max_examples=200, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_whatever_happens_the_choice_and_its_reasons_are_the_same(
    moved_max: int, seed: int, agents: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranked_offers, "MOVED_MAX", moved_max)
        run_pair(Random(seed), agents)


def run_pair(random: Random, agents: int) -> Pair:
    """Let things happen to a pair, and compare its choices."""
    pair = Pair(random, agents)
    for did in pair.dids:
        pair.register(did)
        if random.random() < 0.8:
            pair.stake(did)
    for _ in range(30):
        for _ in range(random.randint(0, 1 if pair.is_at_once else 4)):
            pair.change()
        pair.choose()
    return pair


@pytest.mark.parametrize("is_small", [False, True], ids=["as it is", "with small bounds"])
def test_of_very_many_it_is_the_same_but_for_another_lowest_price(is_small: bool) -> None:
    """Where stakes are required, a large limit of one tenant hid the agents from all others."""
    compared = differing = 0
    with pytest.MonkeyPatch.context() as patched:
        for name, bound in (("POOL_MAX", 8), ("LOOKS_MAX", 6)):
            if is_small:
                patched.setattr(ranked_candidates, name, bound)
        for seed in range(80 if is_small else 30):
            pair = run_pair(Random(seed), 50 if is_small else 2 * POOL_MAX)
            compared += pair.compared
            differing += pair.differing
    # With small bounds it is one that the node may take.
    assert is_small or not differing


# -- very many agents -----------------------------------------------------------------------------

GOOD = paid(successful=100, latency_ms_sum=100)


class CountingDirectory(Directory):
    """Counts how often each agent is weighed."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.weighed: Counter[str] = Counter()

    def _weigh(self, *asked: Any) -> Any:
        self.weighed[asked[2].did] += 1
        return super()._weigh(*asked)


def many(count: int, *rows: dict[str, Any], **card: Any) -> CountingDirectory:
    """Return a directory of so many good agents of one owner, and of other agents."""
    known = CountingDirectory(
        service="callboard", deployment_keys=KEYS, default_secret=None, max_concurrency=1
    )
    known.put([row(f"did:x:{number}", **card) for number in range(count)])
    known.put(rows)
    known.standings.apply_tallies({f"did:x:{number}": GOOD for number in range(count)})
    return known


def test_a_choice_weighs_only_the_agents_about_which_something_has_changed() -> None:
    """One workflow of a thousand nodes held its owner for as many passes over all agents."""
    known = many(1_000)
    known.select(select(), 0)
    assert set(known.weighed.values()) == {1}
    known.weighed.clear()
    known.select(select(), 1)
    assert not known.weighed
    known.begin("did:x:1")
    known.put([row("did:x:2", cents=7)])
    known.apply_liveness({"did:x:3": Liveness("healthy", heartbeat_ms=1)})
    known.apply_liveness({"did:x:3": Liveness("healthy", heartbeat_ms=1)})
    known.standings.apply_tallies({"did:x:4": paid(successful=1), "did:x:8": GOOD})
    known.stakes.apply_parts({"did:x:5": (1, 0)})
    known.revocations.apply_rows([{"did": "did:x:6", "expires_ms": 9, "ended_ms": None}])
    known.select(select(), 2)
    assert known.weighed == Counter(f"did:x:{number}" for number in range(1, 7))
    known.weighed.clear()
    known.select(select(), 9)
    assert known.weighed == Counter(["did:x:6"]), "its revocation is over"


def test_what_is_marked_by_very_many_is_ranked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """After all were heard of, or were silent, a choice moved ten thousand in 0.3 s, one by one."""
    known, moves = many(1_000), Counter[str]()
    dids = [f"did:x:{number}" for number in range(1_000)]
    known.select(select(), 0)
    for name in ("put", "drop"):
        move = getattr(RankedCandidates, name)

        def counted(*arguments: Any, name: str = name, move: Any = move) -> Any:
            moves[name] += 1
            return move(*arguments)

        monkeypatch.setattr(RankedCandidates, name, counted)

    def choose(heard: int, at_ms: int) -> str | None:
        known.weighed.clear()
        moves.clear()
        lives = {did: Liveness("healthy", 1 / (2 + at_ms), at_ms) for did in dids[:heard]}
        known.apply_liveness(lives)
        found = known.select(select(), at_ms)
        return found.agent_did if isinstance(found, AgentSelected) else None

    assert choose(1_000, 1) == "did:x:0"
    assert (not moves, known.weighed.total()) == (True, 1_000)
    assert choose(999, 2) == "did:x:0"
    assert (not moves, known.weighed.total()) == (True, 1_000)
    assert choose(100, 3)
    assert (moves["put"], known.weighed.total()) == (100, 100)
    assert choose(0, 4 + HEARTBEAT_TTL_MS) is None
    assert (not moves, known.weighed.total()) == (True, 1_000)
    assert choose(1, 5 + HEARTBEAT_TTL_MS) == "did:x:0"
    assert known.weighed.total() == 1
    few = many(2)
    few.select(select(), 0)
    few.begin("did:x:0")
    few.weighed.clear()
    few.select(select(), 0)
    assert few.weighed == Counter(["did:x:0"]), "few are moved, however great their part is"


def test_a_verifier_of_another_owner_is_found_behind_thousands_of_the_primarys() -> None:
    known = many(3_000, row("did:x:other", owner="did:x:you", cents=9))
    known.standings.apply_tallies({"did:x:other": paid(failed=20)})
    action = SelectVerifier("n", CAPABILITY, "did:x:7", (), 10**9)

    def verifier() -> str | None:
        found = known.select_verifier(action, 0)
        return found.agent_did if isinstance(found, VerifierSelected) else None

    assert verifier() == "did:x:other"
    known.put([row("did:x:other", owner="did:x:you", status="inactive")])
    assert verifier() is None
    known.put([row("did:x:third", owner="did:x:you")])
    assert verifier() == "did:x:third"
    known.put([row("did:x:third", owner="did:x:owner")])
    assert verifier() is None
    known.put([row("did:x:7", owner="did:x:they")])
    action = SelectVerifier("n", CAPABILITY, "did:x:8", (), 10**9)
    assert verifier() == "did:x:7"
    known.put([row("did:x:7"), row("did:x:9", owner="did:x:they")])
    heard = Liveness("healthy", heartbeat_ms=0)
    known.apply_liveness({f"did:x:{number}": heard for number in range(3_000)})
    assert verifier() == "did:x:9", "when all are ranked anew"


def test_rankings_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    known = many(10, row("did:x:else", card={"capabilities": [{"id": OTHER}]}))
    rankings = known._rankings

    def kept_counts() -> tuple[int, int]:
        return len(rankings._rankings), rankings._candidates

    for cents in range(2 * TERMS_MAX):
        known.select(select(price=FixedPrice(cents)), 0)
    known.select(select(capability_id="cap.unknown.v1"), 0)
    assert kept_counts() == (1, 10 * TERMS_MAX)
    monkeypatch.setattr(ranked_offers, "CANDIDATES_MAX", 10 * TERMS_MAX)
    known.select(select(capability_id=OTHER), 0)
    assert kept_counts() == (1, 1)
    known.select(select(), 0)
    assert kept_counts() == (2, 11)
    known.put([row(f"did:x:more{number}") for number in range(20)])
    known.select(select(), 0)
    assert kept_counts() == (2, 31)
    known.put([row("did:x:else", status="inactive")])
    assert kept_counts() == (1, 30)


def staked(count: int, *, free_micro: int | None = None) -> CountingDirectory:
    """Return a directory that requires stakes, and agents paid by tokens with more and more."""
    rates = {"pricing": {"model": "per-token", "inputRate": "0", "outputRate": "0.00001"}}
    by_token = {"capabilities": [{"id": CAPABILITY, **rates}]}
    known = CountingDirectory(
        service="callboard", deployment_keys=KEYS, default_secret=None, max_concurrency=1,
        stake_bps=5_000,
    )  # fmt: skip
    dids = [f"did:x:{number}" for number in range(count)]
    known.put([row(did, card=by_token) for did in dids])
    known.stakes.apply_parts(
        {
            did: (1_000 * number if free_micro is None else free_micro, 0)
            for number, did in enumerate(dids)
        }
    )
    return known


def take_by_token(known: Directory, limit_micro: int, at_ms: int = 0) -> str | None:
    found = known.select(select(is_by_token=True, price_max_micro=limit_micro), at_ms)
    return found.agent_did if isinstance(found, AgentSelected) else None


def test_limits_of_their_own_do_not_rank_very_many_for_each_node() -> None:
    """Where stakes are required, a node's limit says how much of whom it pays by tokens."""
    known = staked(2 * POOL_MAX)
    for limit_micro in range(2_000, 3_000):
        did = take_by_token(known, limit_micro)
        assert did is not None
        assert 2_000 * known.stakes.staked_micro(did, counts_locked=False) >= 1_000 * limit_micro
    assert set(known.weighed.values()) == {1}


def test_a_dry_run_looks_at_few_of_thousands_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run of a thousand nodes with targets of their own held its owner for 16 s, unpaid."""
    known = many(1_000)
    gone = Liveness("unhealthy", heartbeat_ms=0)
    known.apply_liveness({f"did:x:{number}": gone for number in range(998)})
    looked: Counter[str] = Counter()
    find_unavailability = known._find_unavailability

    def counted(did: str, *asked: Any, **named: Any) -> str | None:
        looked[did] += 1
        return find_unavailability(did, *asked, **named)

    monkeypatch.setattr(known, "_find_unavailability", counted)
    for number in range(100):
        action = select(target_agent_id=f"did:no:{number}", allow_fallback=True)
        assert known.list_available_agents(action, 1) == (["did:x:998", "did:x:999"], None)
    assert looked.total() < 100 * 40 + 1_000
    known.apply_liveness({f"did:x:{number}": gone for number in range(998, 1_000)})
    known.apply_liveness({"did:x:500": Liveness("healthy", heartbeat_ms=1)})
    assert known.list_available_agents(select(), 1) == (["did:x:500"], None)
    known.put([row("did:x:500", status="inactive")])
    assert known.list_available_agents(select(), 1)[0] == []
    known.put([row("did:x:500")])
    assert known.list_available_agents(select(), 1)[0] == ["did:x:500"]


def test_targets_that_nobody_knows_do_not_have_all_prices_read_for_each_node() -> None:
    known = many(1_000, row("did:x:dear", cents=7))
    first = known.asking_prices(CAPABILITY, None)
    assert first.dearest_micro == 70_000
    for number in range(10):
        assert known.asking_prices(CAPABILITY, f"did:no:{number}") is first
    assert known.asking_prices(CAPABILITY, "did:x:1").dearest_micro == 10_000
    known.put([row("did:x:dear", cents=3)])
    assert known.asking_prices(CAPABILITY, None).dearest_micro == 30_000
    known.put([row("did:x:dear", status="inactive")])
    assert known.asking_prices(CAPABILITY, None).dearest_micro == 10_000
    known.apply_prices({CAPABILITY: FixedPrice(5)})
    assert known.asking_prices(CAPABILITY, "did:no:1").registered == FixedPrice(5)
