"""Says which agents may verify a node's result, and which agents accept the payer's verifiers.

By default only trusted verifiers judge, and every agent may take the node. A payer may choose a
verifier capability. Then the node goes only to agents whose card accepts a verifier that offers
this capability now. A verifier's owner must be neither the agent's owner nor the payer's owner.
Reference: money.md (Verifiers).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Final

from actors.directory.health.agent_health import find_payer_owners
from actors.directory.ranked_offers import TRUSTED_ONLY
from actors.ports import AgentEntry
from core.errors import NodeErrorCode
from core.market.ranked_candidates import Accepts
from core.records.bounds import TRUSTED_VERIFIERS
from core.workflow.actions import SelectAgent, SelectBidder, SelectVerifier
from core.workflow.events import Failure, Verdict

# Maximum number of offers that are examined to find two different owners.
LOOKED_AT_MAX: Final = 512


class VerifierOffers:
    """Counts the trusted verifiers of each capability by owner.

    Args:
        entries: the agents of the directory by DID.
        by_capability: the public agents with an endpoint, by capability.
    """

    def __init__(
        self,
        entries: Mapping[str, AgentEntry],
        by_capability: Mapping[str, Mapping[str, AgentEntry]],
    ) -> None:
        self._entries = entries
        self._by_capability = by_capability
        self._trusted: dict[str, Counter[str]] = {}

    def count(self, entry: AgentEntry, change: int) -> None:
        """Count an agent as a verifier of its capabilities, if it is trusted.

        Args:
            entry: a public agent with an endpoint.
            change: 1 when the agent is added, -1 when it is removed.
        """
        if not entry.is_trusted:
            return
        for capability_id in entry.prices:
            owners = self._trusted.setdefault(capability_id, Counter())
            owners[entry.owner_did] += change
            if not owners[entry.owner_did]:
                del owners[entry.owner_did]
                if not owners:
                    del self._trusted[capability_id]

    def has_trusted(self, capability_id: str) -> bool:
        """Say whether a trusted agent offers a capability."""
        return capability_id in self._trusted

    def who_may_verify(self, action: SelectVerifier, payer_did: str) -> tuple[Accepts, str]:
        """Return a function that says which agents may verify, and the value of `Terms.only`."""
        primary = self._entries.get(action.primary_did)
        said = (
            primary.accepted_verifiers
            if action.is_verifier_chosen and primary
            else TRUSTED_VERIFIERS
        )
        payers = find_payer_owners(self._entries, payer_did)

        def accepts(did: str) -> bool:
            is_listed = isinstance(said, str) or did in said
            return is_listed and self._entries[did].owner_did not in payers

        return accepts, TRUSTED_ONLY if said == TRUSTED_VERIFIERS else ""

    def who_may_work(self, action: SelectAgent | SelectBidder, payer_did: str) -> Accepts | None:
        """Return a function that says which agents accept a verifier of the payer's choice.

        The cost does not depend on the number of agents.

        Returns:
            None if the payer has not chosen a verifier capability.
        """
        if not action.verifier_capability_id:
            return None
        offers = self._by_capability.get(action.verifier_capability_id, {})
        payers = find_payer_owners(self._entries, payer_did)
        trusted = _find_two(self._trusted.get(action.verifier_capability_id, ()), payers)
        looked_at = islice(offers.values(), LOOKED_AT_MAX)
        of_any = _find_two((entry.owner_did for entry in looked_at), payers)

        def accepts(did: str) -> bool:
            entry = self._entries[did]
            said = entry.accepted_verifiers
            if isinstance(said, str):
                owners = trusted if said == TRUSTED_VERIFIERS else of_any
            else:
                listed = (offers[one].owner_did for one in said if one in offers)
                owners = [one for one in listed if one not in payers]
            return any(owner_did != entry.owner_did for owner_did in owners)

        return accepts

    def find_failure(
        self, entry: AgentEntry, action: SelectAgent, payer_did: str
    ) -> Failure | None:
        """Return the failure if a target accepts no verifier of the payer's choice, else None."""
        accepts = self.who_may_work(action, payer_did)
        if accepts is None or accepts(entry.did):
            return None
        message = (
            f"{entry.did} accepts no verifier that offers {action.verifier_capability_id!r} now"
        )
        return Failure(NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL)


def _find_two(owners: Iterable[str], barred: Collection[str]) -> list[str]:
    """Return the first two different owners that are not barred; fewer if there are not two.

    Two are enough: for any agent, at least one of two different owners is not the agent's owner.
    """
    found: list[str] = []
    for owner_did in owners:
        if owner_did not in barred and owner_did not in found:
            found.append(owner_did)
            if len(found) == 2:
                break
    return found
