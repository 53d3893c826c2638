"""Says which agents a node may take, by conditions of the node that the ranking does not contain.

The conditions are the verifier, the timeout, the payer's region policies and earlier failures. An
agent whose promised time exceeds the node's `timeoutMs` could never be blamed for a timeout, so it
is no candidate. After a failure or a decline, agents of other owners are preferred, because one
owner may have any number of agents.
Reference: money.md (Promised time, Verifiers, Full agents).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actors.directory.health.agent_health import find_owners
from actors.directory.offers.verifier_offers import VerifierOffers
from actors.directory.ranked_offers import RankedOffers
from actors.directory.subnets import Subnets
from actors.ports import AgentEntry
from core.market.ranked_candidates import Accepts, Best, Node
from core.market.ranking import trial_seed
from core.money import MICRO_MAX
from core.workflow.actions import SelectAgent, SelectBidder, SelectVerifier


class Acceptance:
    """Builds the functions (`Accepts`) that say which agents a node may take.

    Args:
        entries: the agents of the directory by DID.
        verifiers: says which agents accept a verifier.
        subnets: say in which regions the payer's policies permit agents.
    """

    def __init__(
        self, entries: Mapping[str, AgentEntry], verifiers: VerifierOffers, subnets: Subnets
    ) -> None:
        self._entries = entries
        self._verifiers = verifiers
        self._subnets = subnets

    def find(self, action: SelectAgent, payer_did: str) -> Accepts | None:
        """Return a function that says which agents a node may take; None for all.

        The function does not apply to the target of a node.
        """
        chosen = self._verifiers.who_may_work(action, payer_did)
        return both(both(chosen, self.find_timely(action)), self.find_permitted(action, payer_did))

    def find_permitted(
        self, action: SelectAgent | SelectBidder | SelectVerifier, payer_did: str
    ) -> Accepts | None:
        """Return a function that says which agents the payer's region policies permit.

        The result is None if they permit all agents.
        """
        if not self._subnets:
            return None
        return self._subnets.find_accepts(payer_did, action.capability_id, self._entries)

    def find_of_node(
        self, timeout_ms: int | None, verifier_capability_id: str
    ) -> Callable[[str], Accepts | None]:
        """Return a function that takes a capability's id and returns `find` without a payer."""

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
        """Return a function that says which agents promise their results in time; None for all."""
        if isinstance(action, SelectVerifier) or action.timeout_ms is None:
            return None
        entries, capability_id, timeout_ms = self._entries, action.capability_id, action.timeout_ms
        return lambda did: entries[did].promised_ms.get(capability_id, 0) <= timeout_ms

    def choose(self, ranking: RankedOffers, action: SelectAgent, node: Node) -> Best | None:
        """Choose an agent; prefer owners none of whose agents has failed or declined this node."""
        best: Best | None = None
        if action.exclude:
            others = node._replace(owners=find_owners(self._entries, action.exclude))
            best = _choose(ranking, action, others)
        return best or _choose(ranking, action, node)


def _choose(ranking: RankedOffers, action: SelectAgent, node: Node) -> Best | None:
    seed = trial_seed(action.workflow_id, action.node, action.attempt)
    # A locked stake may have become free meanwhile. The ledger decides when it locks the stake.
    return ranking.free.choose(node, seed) or ranking.locked.choose(node, seed)


def both(one: Accepts | None, other: Accepts | None) -> Accepts | None:
    """Return a function that says which agents both functions accept; None accepts all."""
    if one is None or other is None:
        return one or other
    return lambda did: one(did) and other(did)
