"""The prices that agents ask, for the estimate of a publish.

A registered price is what a node pays at most. Without one it depends on the agents, of which some
may be away and a stranger may ask anything. Reference: money.md (Prices, Per-token prices,
Estimate).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

from actors.directory.cards import find_asking_prices, find_target_prices
from actors.directory.published_versions import TRIED_MAX, PublishedVersions
from actors.directory.ranked_offers import TRUSTED_ONLY, OfferRankings, Terms
from actors.directory.subnets import Offers, Scope
from actors.ports import AskingPrices
from core.market.pricing import Price
from core.market.ranked_candidates import Accepts

FindOffers = Callable[[str, str], tuple[Scope, Offers]]


class AskedPrices:
    """The registered prices, by capability, and what agents ask where there is none.

    Args:
        find_offers: returns the agents that offer a capability to a payer, by DID, after the
            private subnets of some of them.
        rankings: those of the selections to come.
        published: the versions of capabilities.
        find_of_node: returns which agents of each capability a node with a timeout and a verifier
            may take; None: all.
        requires_stake: whether an agent needs stake for a node with a price.
    """

    def __init__(
        self,
        find_offers: FindOffers,
        rankings: OfferRankings,
        published: PublishedVersions,
        find_of_node: Callable[[int | None, str], Callable[[str], Accepts | None]],
        *,
        requires_stake: bool,
    ) -> None:
        self._find_offers = find_offers
        self._rankings = rankings
        self._published = published
        self._find_of_node = find_of_node
        self._requires_stake = requires_stake
        self.registered: dict[str, Price] = {}
        # Each of a thousand nodes may ask for another target that is not registered.
        self._asked: dict[str, AskingPrices] = {}

    def apply(self, prices: Mapping[str, Price]) -> None:
        """Store registered prices, by capability."""
        self.registered.update(prices)

    def forget(self, capability_id: str) -> None:
        """Forget what a capability's agents ask: one of them has changed."""
        self._asked.pop(capability_id, None)

    def find(self, capability_id: str, target_agent_id: str | None, payer_did: str) -> AskingPrices:
        """Return the prices that a node may be asked to pay.

        A registered price is the limit; without one the agents' prices count. For a known target
        that offers the capability, the target's own price.
        """
        scope, offers = self._find_offers(capability_id, payer_did)
        registered = self.registered.get(capability_id)
        if target_agent_id is not None and target_agent_id in offers:
            return find_target_prices(offers[target_agent_id], capability_id, registered)
        if registered is not None:
            return AskingPrices(registered)
        known = None if scope else self._asked.get(capability_id)
        if known is None:
            known = find_asking_prices(offers.values(), capability_id)
            if offers and not scope:
                self._asked[capability_id] = known
        return known

    def find_available(
        self,
        capability_id: str,
        versions: str,
        at_ms: int,
        *,
        is_trusted: bool = False,
        timeout_ms: int | None = None,
        verifier_capability_id: str = "",
        payer_did: str = "",
    ) -> AskingPrices:
        """Return the prices that agents ask; the lowest ones of those that can take work now.

        Where none can, the lowest are of those that are away, else of all. Agents paid by tokens
        have no part in the lowest.

        Args:
            versions: the range of the capability's versions that a node names; "": all.
            is_trusted: only trusted agents are asked.
            timeout_ms: the node's; None: it has none.
            verifier_capability_id: the node's; "": it has none.
        """
        known = self.find(capability_id, None, payer_did)
        find_accepts = self._find_of_node(timeout_ms, verifier_capability_id)
        ids = [capability_id]
        if versions:
            found = self._published.find_within(capability_id, versions)
            offered = (one for one in found if self._find_offers(one, payer_did)[1])
            ids = list(islice(offered, TRIED_MAX))
        terms = Terms(None, False, self._requires_stake)
        if is_trusted:  # verifiers, which lock no stake
            terms = Terms(None, False, False, TRUSTED_ONLY)
        rankings = []
        for one in ids:
            scope, offers = self._find_offers(one, payer_did)
            terms = terms._replace(scope=scope)
            rankings.append(self._rankings.find(one, terms, offers, at_ms))
        for kind in zip(*((one.free, one.locked, one.away) for one in rankings), strict=True):
            lowest = [
                micro
                for candidates, one in zip(kind, ids, strict=True)
                for micro in candidates.find_lowest_prices(find_accepts(one))
            ]
            if lowest:
                positive_micro = min(filter(None, lowest), default=None)
                return replace(known, cheapest_micro=min(lowest), positive_micro=positive_micro)
        return AskingPrices() if is_trusted else known
