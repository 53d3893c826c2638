"""An owner's cache of subnets: their members, their policies, and the agents in private subnets.

`core/subnets/policies.py` decides what policies permit. An agent in a private subnet is offered
only to payers that have joined the subnet, and only while the agent's owner has joined it too.
Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from actors.ports import AgentEntry
from core.errors import NodeErrorCode
from core.market.ranked_candidates import Accepts
from core.subnets.policies import Decision, NodeRate, Policy, decide, find_rates, may_leave
from core.workflow.events import Failure, Verdict
from ledger.features.subnets import policy_of

# Size of the cache of decisions. Without it, one publish of 1,000 nodes by a payer with 400
# policies would apply all policies to all peers for each node.
DECISIONS_MAX: Final = 10_000
# `Scope`: private subnets with their versions. `Offers`: agents by DID.
Scope = tuple[tuple[str, int], ...]
Offers = Mapping[str, AgentEntry]
_NOBODY: Final[frozenset[str]] = frozenset()
_NOTHING: Final[dict[str, Any]] = {}


class _Known(NamedTuple):
    """A subnet. `version`: a number that rises with each change. `joined`: the members' DIDs."""

    version: int
    joined: frozenset[str]
    policies: tuple[Policy, ...]


class _Joint(Mapping[str, AgentEntry]):
    """A read-only view of several disjoint mappings of agents, without a copy."""

    def __init__(self, parts: list[Offers]) -> None:
        self._parts = parts

    def __getitem__(self, did: str) -> AgentEntry:
        for part in self._parts:
            if did in part:
                return part[did]
        raise KeyError(did)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


class Subnets:
    """The known subnets, and the offers of agents in private subnets.

    Args:
        by_capability: the offers that are open to all payers.
        region: the region of this deployment, and of cards that name no region; "" for none.
    """

    def __init__(
        self, by_capability: Mapping[str, Mapping[str, AgentEntry]], region: str = ""
    ) -> None:
        self._by_capability = by_capability
        self._region = region
        self._known: dict[str, _Known] = {}
        # The subnets that a DID has joined, and the policies that bind it.
        self._joined: defaultdict[str, set[str]] = defaultdict(set)
        self._binding: dict[str, tuple[Policy, ...]] = {}
        self._decisions: dict[tuple[str, str, str | None, bool], Decision] = {}
        # Offers in private subnets, by capability, subnet and owner.
        self._private: dict[str, dict[str, dict[str, dict[str, AgentEntry]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def apply_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Store subnets from rows (`id, changed_id, joined_dids, policies`).

        A subnet without members is removed: its policies bind no payer, and its agents are hidden.
        """
        self._decisions.clear()
        for row in rows:
            subnet_id, joined = row["id"], frozenset(row["joined_dids"])
            former = self._known.pop(subnet_id, _NEW)
            if joined:
                policies = tuple(map(policy_of, row["policies"]))
                self._known[subnet_id] = _Known(row["changed_id"], joined, policies)
            for did in former.joined - joined:
                self._joined[did].discard(subnet_id)
                if not self._joined[did]:
                    del self._joined[did]
            for did in joined:
                self._joined[did].add(subnet_id)
            for did in former.joined | joined:
                self._binding.pop(did, None)

    # -- offers in private subnets ----------------------------------------------------------------

    def add(self, entry: AgentEntry) -> None:
        """Add the offers of an agent in a private subnet."""
        for capability_id in entry.prices:
            by_subnet = self._private.setdefault(capability_id, {})
            by_owner = by_subnet.setdefault(entry.private_subnet, {})
            by_owner.setdefault(entry.owner_did, {})[entry.did] = entry

    def remove(self, entry: AgentEntry) -> None:
        """Remove the offers of an agent in a private subnet."""
        for capability_id in entry.prices:
            by_subnet = self._private[capability_id]
            by_owner = by_subnet[entry.private_subnet]
            del by_owner[entry.owner_did][entry.did]
            if not by_owner[entry.owner_did]:
                del by_owner[entry.owner_did]
            if not by_owner:
                del by_subnet[entry.private_subnet]
            if not by_subnet:
                del self._private[capability_id]

    def find_offers(self, capability_id: str, payer_did: str) -> tuple[Scope, Offers]:
        """Return the agents that offer a capability to a payer.

        Returns:
            The private subnets that may contain some of these agents, and the agents by DID.
        """
        offers: Offers = self._by_capability.get(capability_id, _NOTHING)
        by_subnet = self._private.get(capability_id)
        if by_subnet is None:
            return (), offers
        shared = sorted(by_subnet.keys() & self._joined.get(payer_did, _NOBODY))
        if not shared:
            return (), offers
        known = [self._known[one] for one in shared]
        parts = [offers]
        for subnet_id, subnet in zip(shared, known, strict=True):
            by_owner = by_subnet[subnet_id]
            parts += (by_owner[one] for one in by_owner.keys() & subnet.joined)
        return tuple(zip(shared, (one.version for one in known), strict=True)), _Joint(parts)

    def is_hidden(self, entry: AgentEntry, payer_did: str) -> bool:
        """Say whether a private subnet hides an agent from a payer.

        The subnet hides the agent unless both the payer and the agent's owner have joined it.
        """
        if not entry.private_subnet:
            return False
        known = self._known.get(entry.private_subnet)
        return known is None or not {payer_did, entry.owner_did} <= known.joined

    # -- policies ---------------------------------------------------------------------------------

    def find_policies(self, payer_did: str) -> tuple[Policy, ...]:
        """Return the policies of the subnets that a payer has joined, sorted by id."""
        joined = self._joined.get(payer_did)
        if joined is None:
            return ()
        found = self._binding.get(payer_did)
        if found is None:
            policies = (one for subnet_id in joined for one in self._known[subnet_id].policies)
            found = tuple(sorted(policies, key=lambda one: one.id))
            self._binding[payer_did] = found
        return found

    def decide(self, payer_did: str, capability_id: str, region: str | None = None) -> Decision:
        """Decide whether a payer's node of a capability may run in a region.

        Args:
            capability_id: the id of the capability, or of a version of it.
            region: the region of a peer or a card; "" for a card that names no region; None if no
                agent is chosen yet.
        """
        if region is not None:
            region = region or self._region or None
        return self._decide(payer_did, capability_id, region, is_leaving=False)

    def _decide(
        self, payer_did: str, capability_id: str, region: str | None, *, is_leaving: bool
    ) -> Decision:
        policies, key = (
            self.find_policies(payer_did),
            (payer_did, capability_id, region, is_leaving),
        )
        decision = self._decisions.get(key)
        if decision is None:
            capability_id = capability_id.partition("@")[0]
            if is_leaving:
                decision = may_leave(policies, capability_id, region or "")
            else:
                is_own = region == self._region
                decision = decide(policies, capability_id, region, is_own=is_own)
            if policies and len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            if policies:
                self._decisions[key] = decision
        return decision

    def may_leave(self, payer_did: str, capability_id: str, region: str) -> Decision:
        """Decide whether policies permit a payer's inputs to leave to a region."""
        return self._decide(payer_did, capability_id, region, is_leaving=True)

    def find_refusal(
        self, payer_did: str, capability_id: str, region: str | None = None
    ) -> Failure | None:
        """Return why a payer's policies refuse a node; None if they permit it.

        The arguments are those of `decide`.
        """
        if not self._known:
            return None
        policy = self.decide(payer_did, capability_id, region).policy
        if policy is None:
            return None
        return Failure(
            NodeErrorCode.POLICY_DENIED,
            f"the policy {policy.id} ({policy.kind}) of a subnet that the payer has joined refuses"
            f" nodes of {capability_id!r}",
            Verdict.FINAL,
        )

    def find_accepts(
        self, payer_did: str, capability_id: str, entries: Mapping[str, AgentEntry]
    ) -> Accepts | None:
        """Return a function that says which agents a payer's region policies permit; None for all.

        Args:
            entries: the agents by DID.
        """
        named = {one.region for one in self.find_policies(payer_did) if one.region is not None}
        if not named:
            return None
        named.add(self._region)
        # Decisions by region. All regions that no policy names share one decision, under None.
        decided: dict[str | None, bool] = {}

        def accepts(did: str) -> bool:
            region = entries[did].region
            key = None if region and region not in named else region
            if key not in decided:
                decided[key] = self.decide(payer_did, capability_id, region).is_allowed
            return decided[key]

        return accepts

    def find_rates(self, payer_did: str, capability_ids: Iterable[str]) -> tuple[NodeRate, ...]:
        """Return how many nodes of a publish each of the payer's `rate_limit` policies counts.

        Args:
            capability_ids: the capability of each node of the publish.
        """
        return find_rates(self.find_policies(payer_did), capability_ids)


_NEW: Final = _Known(0, frozenset(), ())
