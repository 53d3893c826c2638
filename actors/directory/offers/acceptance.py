"""Which agents a node may take, by what its ranking does not know: its verifier, time and failures.

An agent that promises its result later than the node's `timeoutMs` could never be blamed, so it is
no candidate. After a failure or a decline the agents of other owners come first: one owner may have
any number of agents. Spec: money.md (Promised time, Verifiers, Full agents).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from actors.directory.health.agent_health import find_owners
from actors.directory.offers.verifier_offers import VerifierOffers
from actors.directory.ranked_offers import RankedOffers
from actors.ports import AgentEntry
from core.market.no_candidates import OWNER_FAILED, TOO_SLOW, VERIFIER_NOT_ACCEPTED
from core.market.ranked_candidates import Accepts, Best
from core.market.ranking import trial_seed
from core.money import MICRO_MAX
from core.workflow.actions import SelectAgent, SelectVerifier


class Acceptance:
    """Says which agents a node may take; knows by capability the longest promise of a card.

    Args:
        entries: the directory's agents, by DID.
        verifiers: says which of them accept a verifier.
    """

    def __init__(self, entries: Mapping[str, AgentEntry], verifiers: VerifierOffers) -> None:
        self._entries = entries
        self._verifiers = verifiers
        # At least that: it is not lowered until no agent offers the capability.
        self._longest_ms: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Acceptance promised={len(self._longest_ms)}>"

    def note(self, entry: AgentEntry) -> None:
        """Note the promises of an agent that can be sent work."""
        for capability_id, promised_ms in entry.promised_ms.items():
            longest_ms = self._longest_ms.get(capability_id, 0)
            self._longest_ms[capability_id] = max(longest_ms, promised_ms)

    def forget(self, capability_id: str) -> None:
        """Forget a capability that no agent offers any more."""
        self._longest_ms.pop(capability_id, None)

    def find(self, action: SelectAgent, payer_did: str) -> Accepts | None:
        """Return what says which agents a node may take, None for all; a target is not asked."""
        chosen = self._verifiers.who_may_work(action, payer_did)
        return _both(chosen, self.find_timely(action))

    def find_of_node(
        self, timeout_ms: int | None, verifier_capability_id: str
    ) -> Callable[[str], Accepts | None]:
        """Return what says of a capability which agents a node may take, before it has a payer."""

        def find_accepts(capability_id: str) -> Accepts | None:
            node = SelectAgent(
                "",
                capability_id,
                None,
                False,
                (),
                MICRO_MAX,
                verifier_capability_id=verifier_capability_id,
                timeout_ms=timeout_ms,
            )
            return self.find(node, "")

        return find_accepts

    def find_timely(self, action: SelectAgent | SelectVerifier) -> Accepts | None:
        """Return what says which agents promise their results in time, None where all do."""
        if isinstance(action, SelectVerifier) or action.timeout_ms is None:
            return None
        entries, capability_id, timeout_ms = self._entries, action.capability_id, action.timeout_ms
        if self._longest_ms.get(capability_id, 0) <= timeout_ms:
            return None
        return lambda did: entries[did].promised_ms.get(capability_id, 0) <= timeout_ms

    def find_reasons(
        self, action: SelectAgent, payer_did: str, chosen_did: str
    ) -> Callable[[str], str | None]:
        """Return what says why a node that took one agent could not take another, or None."""
        entries = self._entries
        chosen = self._verifiers.who_may_work(action, payer_did)
        timely = self.find_timely(action)
        owners = find_owners(entries, action.exclude)
        is_other = entries[chosen_did].owner_did not in owners

        def find_reason(did: str) -> str | None:
            if chosen is not None and not chosen(did):
                return VERIFIER_NOT_ACCEPTED
            if timely is not None and not timely(did):
                return TOO_SLOW
            return OWNER_FAILED if is_other and entries[did].owner_did in owners else None

        return find_reason

    def choose(
        self,
        ranking: RankedOffers,
        action: SelectAgent,
        refused: Set[str],
        accepts: Accepts | None,
    ) -> Best | None:
        """Choose an agent, of another owner than those that have failed here if there is one.

        Args:
            refused: whom the node may not take.
            accepts: which agents it may take; None: all.
        """
        if action.exclude:
            entries = self._entries
            owners = find_owners(entries, action.exclude)
            others = _both(accepts, lambda did: entries[did].owner_did not in owners)
            best = _choose(ranking, action, refused, others)
            if best is not None:
                return best
        return _choose(ranking, action, refused, accepts)


def _choose(
    ranking: RankedOffers, action: SelectAgent, refused: Set[str], accepts: Accepts | None
) -> Best | None:
    seed = None
    if ranking.may_try:
        seed = trial_seed(action.workflow_id, action.node, action.attempt)
    most_micro = action.price_max_micro
    best = ranking.free.choose(most_micro, seed=seed, refused=refused, accepts=accepts)
    if best is None:
        # Locked stakes may be free by now; the ledger decides when it locks.
        best = ranking.locked.choose(most_micro, seed=seed, refused=refused, accepts=accepts)
    return best


def _both(one: Accepts | None, other: Accepts | None) -> Accepts | None:
    if one is None or other is None:
        return one or other
    return lambda did: one(did) and other(did)
