"""One workflow owner's cache of agents: their cards, reported health, and observed health.

Rows fill it at the start, the ledger's notices keep it fresh, a miss refreshes it.
`core/market/ranking.py` chooses between agents; `core/market/agent_liveness.py` judges heartbeats
and probes. Spec: Targeted routing; contract.md section 5 (AGENT_UNAVAILABLE details) and section 6
(Heartbeat).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import orjson

from actors.directory.agent_stakes import STAKE_LOCKED, UNDER_STAKED, Stakes
from actors.directory.cards import CardReader, find_asking_prices
from actors.directory.circuits import Circuits, Opened
from actors.directory.revoked_agents import Revocations
from actors.directory.shortlists import ALL_MAX, Shortlists
from actors.ports import AgentEntry, AskingPrices, Contact
from core.errors import NodeErrorCode
from core.market.agent_liveness import (
    UNHEARD,
    Availability,
    Liveness,
    availability,
    drop_older_signals,
    reported_load,
)
from core.market.pricing import FixedPrice, Price, TokenPrice, Tokens, cost_micro, effective_price
from core.market.ranking import (
    DEFAULT_RULES,
    SHOWN_MAX,
    UNPROVEN,
    Candidate,
    Choice,
    RankingRules,
    Standing,
    build_standing,
    choose_agent,
    trial_seed,
)
from core.market.reputation import Tally
from core.workflow.actions import SelectAgent, SelectVerifier
from core.workflow.events import AgentNotSelected, AgentSelected, Failure, Verdict, VerifierSelected

log = logging.getLogger("callboard.owner")

PAID_BY_TOKENS = "paid_by_tokens"
# Token counts at which prices per token are compared: a page read, a page written.
TYPICAL = Tokens(1_000, 1_000)


class Directory:
    """Registered agents by DID and by capability.

    Args:
        service: the `<service>` of dispatch paths.
        deployment_key: 32 bytes that unseal signing secrets.
        default_secret: signs dispatches to agents without a secret of their own, or None.
        max_concurrency: for cards without `maxConcurrency`.
        rules: the weights of the ranking.
        latency_ms_max: the average latency at which the speed score is 0, milliseconds.
        stake_bps: the stake required of an agent, basis points of the node's price.
    """

    def __init__(
        self,
        *,
        service: str,
        deployment_key: bytes,
        default_secret: str | None,
        max_concurrency: int,
        rules: RankingRules = DEFAULT_RULES,
        latency_ms_max: int = 60_000,
        stake_bps: int = 0,
    ) -> None:
        self._cards = CardReader(service, deployment_key, default_secret, max_concurrency)
        self._rules = rules
        self._shortlists = Shortlists(rules)
        self._latency_ms_max = latency_ms_max
        self._entries: dict[str, AgentEntry] = {}
        self._by_capability: dict[str, dict[str, AgentEntry]] = {}
        self._inactive: set[str] = set()
        self._live: dict[str, Liveness] = {}
        self._silent_from_ms = 0
        self._prices: dict[str, Price] = {}
        self._standings: dict[str, Standing] = {}
        self._stored_ms: dict[str, int] = {}
        self.stakes = Stakes(stake_bps)
        self.revocations = Revocations()
        self._circuits = Circuits()
        self._in_flight: Counter[str] = Counter()
        self._order = 0

    def __repr__(self) -> str:
        return f"<Directory agents={len(self._entries)} capabilities={len(self._by_capability)}>"

    # -- contents ---------------------------------------------------------------------------------

    def put(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Store agents from rows (`did, owner_did, card, endpoint, status, signing_secret`).

        `updated_ms`, where a row has it: earlier heartbeats belong to an earlier registration.
        """
        for row in rows:
            did = row["did"]
            known = self._remove(did)
            if row["status"] != "active":
                self._inactive.add(did)
                continue
            self._inactive.discard(did)
            self._stored_ms[did] = row.get("updated_ms", 0)
            if known is None:
                self._order += 1
            try:
                entry = self._cards.build_entry(row, known.order if known else self._order)
            except Exception:  # the edge of one card: the other agents are known even so
                log.exception("card not readable, its agent gets no work agent=%s", did)
                self._inactive.add(did)
                continue
            self._index(entry)

    def apply_liveness(self, heard: Mapping[str, Liveness]) -> None:
        """Store the newest heartbeats and probes, by agent."""
        self._live.update(heard)

    def count_silence_from(self, at_ms: int) -> None:
        """Count the silence of agents from this time on: earlier heartbeats may be lost."""
        self._silent_from_ms = at_ms

    def apply_tallies(self, tallies: Mapping[str, Tally]) -> None:
        """Store the newest reputation tallies, by agent."""
        for did, tally in tallies.items():
            self._standings[did] = build_standing(tally, latency_ms_max=self._latency_ms_max)

    def is_missing(self, capability_id: str, target_agent_id: str | None) -> bool:
        """Whether the ledger may have an agent that this cache lacks."""
        if target_agent_id is not None and target_agent_id not in self._entries:
            return True
        return not self._by_capability.get(capability_id)

    def entry(self, did: str) -> AgentEntry | None:
        """Return a known active agent."""
        return self._entries.get(did)

    def is_revoked(self, did: str, at_ms: int) -> bool:
        """Whether an agent is revoked at a time, by this cache."""
        return self.revocations.is_revoked(did, at_ms)

    def apply_prices(self, prices: Mapping[str, Price]) -> None:
        """Store registered prices, by capability."""
        self._prices.update(prices)

    def asking_prices(self, capability_id: str, target_agent_id: str | None) -> AskingPrices:
        """Return the prices that a node may be asked to pay, for an estimate.

        A registered price is the limit; without one it is the highest price of an agent. For a
        known target that offers the capability, the target's own price.
        """
        offers = self._by_capability.get(capability_id, {})
        return find_asking_prices(
            offers, capability_id, self._prices.get(capability_id), target_agent_id
        )

    # -- selection --------------------------------------------------------------------------------

    def select(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """Answer a machine's `SelectAgent`: the target, or the best of the healthy candidates.

        Args:
            payer_did: the workflow's, here and below; "" for one whose attempts never timed out.
        """
        if action.target_agent_id is not None:
            unavailable = self._find_target_failure(action, at_ms, payer_did)
            if unavailable is None:
                self._circuits.note_chosen(action.target_agent_id, at_ms, payer_did=payer_did)
                return self._selected(action, action.target_agent_id, at_ms, None)
            if not action.allow_fallback:
                return AgentNotSelected(action.node, unavailable, at_ms)
        offers = [one for one in self._shortlisted(action, at_ms) if one.did not in action.exclude]
        choice, failure = self._choose(offers, action, at_ms, payer_did)
        if choice.did is None:
            return AgentNotSelected(action.node, failure, at_ms)
        self._circuits.note_chosen(choice.did, at_ms, payer_did=payer_did)
        return self._selected(action, choice.did, at_ms, choice)

    def select_verifier(
        self, action: SelectVerifier, at_ms: int, *, payer_did: str = ""
    ) -> VerifierSelected | AgentNotSelected:
        """Answer `SelectVerifier`: a healthy agent of another owner than the primary's."""
        primary = self._entries.get(action.primary_did)
        primary_owner = primary.owner_did if primary is not None else action.primary_did
        offers = [
            entry
            for entry in self._shortlisted(action, at_ms)
            if entry.did not in action.exclude
            and entry.did != action.primary_did
            and entry.owner_did != primary_owner
        ]
        choice, failure = self._choose(offers, action, at_ms, payer_did)
        if choice.did is None:
            return AgentNotSelected(action.node, failure, at_ms)
        self._circuits.note_chosen(choice.did, at_ms, payer_did=payer_did)
        price = self._asking_price(self._entries[choice.did], action)
        assert isinstance(price, FixedPrice), "a verifier is not paid by tokens"
        return VerifierSelected(action.node, choice.did, price.micro, at_ms)

    def list_available_agents(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> tuple[list[str], Failure | None]:
        """Return the agents that could take a node now, and the failure when there is none.

        As `select`, but without selecting an agent and without a price limit; only some of the
        agents when there are many.
        """
        dids: list[str] = []
        if action.target_agent_id is not None:
            failure = self._find_target_failure(action, at_ms, payer_did)
            if failure is None:
                dids.append(action.target_agent_id)
            if not action.allow_fallback:
                return dids, failure
        offers = self._by_capability.get(action.capability_id, {})
        able = (
            did
            for did in offers
            if did not in dids
            and self._find_unavailability(did, at_ms, payer_did=payer_did) is None
        )
        # As many as a choice shows: there may be thousands, for each of a thousand nodes.
        dids += islice(able, SHOWN_MAX)
        if dids:
            return dids, None
        return [], self._choose(self._shortlisted(action, at_ms), action, at_ms, payer_did)[1]

    def _shortlisted(
        self, action: SelectAgent | SelectVerifier, at_ms: int
    ) -> Sequence[AgentEntry]:
        """Return the agents that a choice looks at: all, or of very many a shortlist."""
        key = (action.capability_id, isinstance(action, SelectAgent) and action.is_by_token)
        offers = self._by_capability.get(action.capability_id, {})
        # Of no payer: what one payer has seen of an agent leaves it on the list of the others.
        weigh = partial(self._build_candidate, action=action, at_ms=at_ms, payer_did="")
        return self._shortlists.offers(key, offers, weigh, at_ms)

    def _selected(
        self, action: SelectAgent, did: str, at_ms: int, choice: Choice | None
    ) -> AgentSelected:
        price = self._asking_price(self._entries[did], action)
        reasons = None
        if choice is not None and len(choice.ranked) + len(choice.excluded) > 1:
            reasons = orjson.dumps(choice.to_json()).decode()
        stake_micro = self._stake_micro(did, price, action)
        if isinstance(price, TokenPrice):
            return AgentSelected(action.node, did, 0, at_ms, reasons, price, stake_micro)
        return AgentSelected(action.node, did, price.micro, at_ms, reasons, None, stake_micro)

    def _stake_micro(self, did: str, price: Price, action: SelectAgent) -> int:
        """Return the stake that the node requires, by its price or by its limit in tokens."""
        if not self.stakes.is_required:
            return 0
        most_micro = action.price_max_micro if isinstance(price, TokenPrice) else price.micro
        return self.stakes.required_micro(most_micro, self._standings.get(did, UNPROVEN).score)

    def _asking_price(self, entry: AgentEntry, action: SelectAgent | SelectVerifier) -> Price:
        """Return the price an agent asks for the node: its card's, else the registered one."""
        own = entry.prices[action.capability_id]
        if isinstance(action, SelectVerifier):
            return effective_price(own, self._prices.get(action.capability_id))
        return effective_price(own, action.price)

    def _build_candidate(
        self, entry: AgentEntry, action: SelectAgent | SelectVerifier, at_ms: int, payer_did: str
    ) -> Candidate:
        did = entry.did
        price = self._asking_price(entry, action)
        excluded = None
        # Most agents have nothing but a card, so a thousand offers cost little.
        if did in self._live or did in self._circuits or did in self.revocations:
            excluded = self._find_unavailability(did, at_ms, payer_did=payer_did)
        is_by_token = isinstance(price, TokenPrice)
        if is_by_token and not (isinstance(action, SelectAgent) and action.is_by_token):
            excluded = excluded or PAID_BY_TOKENS
        if isinstance(action, SelectAgent) and self.stakes.is_required:
            shortage = self.stakes.find_shortage(did, self._stake_micro(did, price, action))
            excluded = excluded or shortage
        return Candidate(
            did,
            cost_micro(price, TYPICAL),
            self._in_flight[did],
            entry.max_concurrency,
            entry.order,
            reported_load(self._known_liveness(did), at_ms) if did in self._live else 0.0,
            self._standings.get(did, UNPROVEN),
            excluded,
            not is_by_token,
        )

    def _choose(
        self,
        offers: Sequence[AgentEntry],
        action: SelectAgent | SelectVerifier,
        at_ms: int,
        payer_did: str,
    ) -> tuple[Choice, Failure]:
        capability_id, price_max_micro = action.capability_id, action.price_max_micro
        candidates = [self._build_candidate(entry, action, at_ms, payer_did) for entry in offers]
        seed = None
        if len(offers) > 1 and isinstance(action, SelectAgent):
            seed = trial_seed(action.workflow_id, action.node, action.attempt)
        offering = len(self._by_capability.get(capability_id, {}))
        others = offering - len(offers) if offering > ALL_MAX else 0
        choose = partial(
            choose_agent,
            price_max_micro=price_max_micro,
            rules=self._rules,
            seed=seed,
            others=others,
        )
        choice = choose(candidates)
        if choice.did is None and self.stakes.is_required:
            # Locked stakes may be free by now; the ledger decides when it locks.
            candidates = [
                one._replace(excluded=None) if one.excluded == STAKE_LOCKED else one
                for one in candidates
            ]
            choice = choose(candidates)
        if choice.did is not None:
            return choice, Failure(NodeErrorCode.NO_CANDIDATE, "", Verdict.FINAL)
        healthy = [candidate for candidate in candidates if candidate.excluded is None]
        if healthy:
            return choice, Failure(
                NodeErrorCode.BUDGET_EXCEEDED,
                f"the cheapest of {len(healthy)} agents for {capability_id!r} costs"
                f" {min(c.price_micro for c in healthy)} micro-credits,"
                f" {price_max_micro} are left",
                Verdict.FINAL,
            )
        return choice, Failure(
            NodeErrorCode.NO_CANDIDATE,
            f"no agent can take {capability_id!r}: {len(offers) + others} offer it, none is healthy"
            + (" and has the stake it asks" if self.stakes.is_required else ""),
            Verdict.FINAL,
        )

    def _find_target_failure(
        self, action: SelectAgent, at_ms: int, payer_did: str
    ) -> Failure | None:
        target = action.target_agent_id
        assert target is not None
        details = self._find_unavailability(
            target, at_ms, payer_did=payer_did, is_excluded=target in action.exclude
        )
        if details is None:
            entry = self._entries[target]
            if action.capability_id in entry.prices:
                return self._find_price_failure(entry, action)
            details = "capability_not_offered"
        return Failure(
            NodeErrorCode.AGENT_UNAVAILABLE,
            f"{target} cannot take {action.capability_id!r}: {details}",
            Verdict.FINAL,
            details=details,
            target_agent_id=target,
        )

    def _find_price_failure(self, entry: AgentEntry, action: SelectAgent) -> Failure | None:
        price = self._asking_price(entry, action)
        required_micro = self._stake_micro(entry.did, price, action)
        if self.stakes.find_shortage(entry.did, required_micro) == UNDER_STAKED:
            message = f"{entry.did} has staked less than {required_micro} micro-credits"
            return Failure(NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL)
        if isinstance(price, TokenPrice):
            if action.is_by_token:
                return None
            message = f"{entry.did} is paid by tokens, and the node's price is fixed"
        elif price.micro <= action.price_max_micro:
            return None
        else:
            left = f"{action.price_max_micro} are left"
            message = f"{entry.did} asks {price.micro} micro-credits, {left}"
        return Failure(NodeErrorCode.BUDGET_EXCEEDED, message, Verdict.FINAL)

    # -- health -----------------------------------------------------------------------------------

    def _find_unavailability(
        self, did: str, at_ms: int, *, payer_did: str, is_excluded: bool = False
    ) -> str | None:
        """Return why an agent takes no work of a payer, or None; in the contract's order."""
        entry = self._entries.get(did)
        if entry is None and did not in self._inactive:
            return "agent_not_found"
        if self.is_revoked(did, at_ms):
            return "agent_revoked"
        if entry is None:
            return "agent_inactive"
        live = self._known_liveness(did)
        health = availability(live, at_ms, silent_from_ms=self._silent_from_ms)
        if is_excluded or health is Availability.UNHEALTHY:
            return "agent_unhealthy"
        if self._circuits.is_open(did, at_ms, payer_did=payer_did):
            return "agent_unhealthy"
        if health is not Availability.AVAILABLE or not entry.url:
            return "agent_offline"
        return None

    def _known_liveness(self, did: str) -> Liveness:
        live = self._live.get(did)
        return UNHEARD if live is None else drop_older_signals(live, self._stored_ms[did])

    def begin(self, did: str) -> None:
        """Count an order as in flight at the agent, also while it is queued."""
        self._in_flight[did] += 1

    def note_outcome(
        self, did: str, contact: Contact, at_ms: int, *, payer_did: str = ""
    ) -> Opened:
        """Count an order as closed; returns for whom its end opened a circuit of the agent."""
        self._in_flight[did] -= 1
        if self._in_flight[did] <= 0:
            del self._in_flight[did]
        return self._circuits.note_outcome(did, contact, at_ms, payer_did=payer_did)

    def open_circuits(self) -> list[str]:
        """Return the agents with an open or half-open circuit, which should be probed."""
        return self._circuits.open_agents()

    # -- rows -------------------------------------------------------------------------------------

    def _remove(self, did: str) -> AgentEntry | None:
        entry = self._entries.pop(did, None)
        self._stored_ms.pop(did, None)
        if entry is not None and entry.url:
            for capability_id in entry.prices:
                offers = self._by_capability[capability_id]
                del offers[did]
                if not offers:
                    del self._by_capability[capability_id]
        return entry

    def _index(self, entry: AgentEntry) -> None:
        self._entries[entry.did] = entry
        if not entry.url:
            return  # a card without an address can be read, but its agent gets no dispatch
        for capability_id in entry.prices:
            self._by_capability.setdefault(capability_id, {})[entry.did] = entry
