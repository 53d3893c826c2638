"""Finds the prices that agents ask, for the estimate of a publish.

A registered price is the most that a node pays. Without a registered price, the estimate depends on
the prices of the agents. Some agents may be away, and a stranger's agent may ask any price.
Reference: money.md (Prices, Per-token prices, Estimate).
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
    """The registered prices by capability, and the agents' prices for other capabilities.

    Args:
        find_offers: `Subnets.find_offers`.
        rankings: the rankings of the directory, which selections use too.
        published: the published versions of capabilities.
        find_of_node: `Acceptance.find_of_node`.
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
        # The agents' prices by capability. Without this cache, a publish of 1,000 nodes could walk
        # over all agents of a capability for each node.
        self._asked: dict[str, AskingPrices] = {}

    def apply(self, prices: Mapping[str, Price]) -> None:
        """Store registered prices by capability."""
        self.registered.update(prices)

    def forget(self, capability_id: str) -> None:
        """Drop the cached prices of a capability's agents, because one of the agents changed."""
        self._asked.pop(capability_id, None)

    def find(self, capability_id: str, target_agent_id: str | None, payer_did: str) -> AskingPrices:
        """Return the prices that a node may have to pay.

        If the node names a target that offers the capability, this is the target's price. For any
        other node it is the registered price. Without a registered price, these are the prices of
        all agents.
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
        """Return the prices that agents ask, with the lowest prices of agents that can take work.

        The lowest prices are those of the first group that is not empty: agents that can take work
        now; agents whose stake is locked; agents that are away; all agents (not with `is_trusted`).
        Agents paid by tokens do not count for the lowest prices.

        Args:
            versions: the range of versions that the node names; "" for all.
            is_trusted: only trusted verifiers count.
            timeout_ms: the timeout of the node; None if it has none.
            verifier_capability_id: the verifier capability of the node; "" if it has none.
        """
        known = self.find(capability_id, None, payer_did)
        find_accepts = self._find_of_node(timeout_ms, verifier_capability_id)
        ids = [capability_id]
        if versions:
            found = self._published.find_within(capability_id, versions)
            offered = (one for one in found if self._find_offers(one, payer_did)[1])
            ids = list(islice(offered, TRIED_MAX))
        terms = Terms(None, False, self._requires_stake)
        if is_trusted:  # verifiers lock no stake
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
