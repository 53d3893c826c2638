"""A directory that weighs every agent at each choice: what the kept rankings must agree with."""

from __future__ import annotations

from collections.abc import Sequence, Set

import orjson

from actors.directory.agent_directory import PAID_BY_TOKENS, TYPICAL, Directory
from actors.directory.agent_stakes import STAKE_LOCKED
from actors.ports import AgentEntry
from core.errors import NodeErrorCode
from core.market.agent_liveness import reported_load
from core.market.no_candidates import OWNER_FAILED, TOO_SLOW, VERIFIER_NOT_ACCEPTED
from core.market.pricing import FixedPrice, TokenPrice, cost_micro
from core.market.ranking import SHOWN_MAX, Candidate, Choice, trial_seed
from core.workflow.actions import SelectAgent, SelectVerifier
from core.workflow.events import (
    AgentNotSelected,
    AgentSelected,
    Failure,
    Verdict,
    VerifierSelected,
)
from tests.core.market.full_weighing import weigh_all


class FullDirectory(Directory):
    """The directory with choices that keep nothing from one to the next.

    `open_dids`: whom the last choice could have taken, or the last dry run have named.
    """

    open_dids: Set[str] = frozenset()

    def select(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """As the directory's."""
        if action.target_agent_id is not None:
            return super().select(action, at_ms, payer_did=payer_did)
        offers = [one for one in self._offers_of(action) if one.did not in action.exclude]
        tried = {self._entries[did].owner_did for did in action.exclude if did in self._entries}
        choice = self._weigh_offers(offers, action, at_ms, payer_did, tried)
        if isinstance(choice, Failure) and tried:
            choice = self._weigh_offers(offers, action, at_ms, payer_did)
        if isinstance(choice, Failure):
            return AgentNotSelected(action.node, choice, at_ms)
        assert choice.did is not None
        self._circuits.note_chosen(choice.did, at_ms)
        reasons = None
        if len(choice.ranked) + len(choice.excluded) > 1:
            reasons = orjson.dumps(choice.to_json()).decode()
        return self._selected(action, choice.did, at_ms, reasons, payer_did)

    def select_verifier(
        self, action: SelectVerifier, at_ms: int, *, payer_did: str = ""
    ) -> VerifierSelected | AgentNotSelected:
        """As the directory's."""
        primary = self._entries.get(action.primary_did)
        primary_owner = primary.owner_did if primary is not None else action.primary_did
        said = primary.accepted_verifiers if action.is_verifier_chosen and primary else "trusted"
        offers = [
            entry
            for entry in self._offers_of(action)
            if entry.did not in action.exclude
            and self._may_verify(entry, said, primary_owner, payer_did)
        ]
        choice = self._weigh_offers(offers, action, at_ms, payer_did)
        if isinstance(choice, Failure):
            return AgentNotSelected(action.node, choice, at_ms)
        assert choice.did is not None
        self._circuits.note_chosen(choice.did, at_ms)
        price = self._asking_price(self._entries[choice.did], action)
        assert isinstance(price, FixedPrice)
        is_trusted = self._entries[choice.did].is_trusted
        return VerifierSelected(action.node, choice.did, price.micro, at_ms, is_trusted)

    def _may_verify(
        self, entry: AgentEntry, said: str | tuple[str, ...], primary_owner: str, payer_did: str
    ) -> bool:
        payer = self._entries.get(payer_did)
        owners = {primary_owner, payer_did, payer.owner_did if payer else payer_did}
        is_accepted = said == "any" or (
            entry.is_trusted if said == "trusted" else entry.did in said
        )
        return is_accepted and entry.owner_did not in owners

    def list_available_agents(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> tuple[list[str], Failure | None]:
        """As the directory's."""
        dids: list[str] = []
        if action.target_agent_id is not None:
            failure = self._find_target_failure(action, at_ms, payer_did)
            if failure is None:
                dids.append(action.target_agent_id)
            if not action.allow_fallback:
                self.open_dids = {*dids}
                return dids, failure
        able = [
            entry.did
            for entry in self._offers_of(action)
            if entry.did not in dids
            and self._find_unavailability(entry.did, at_ms, payer_did=payer_did) is None
            and self._build_candidate(entry, action, at_ms, payer_did).excluded
            not in (VERIFIER_NOT_ACCEPTED, TOO_SLOW)
        ]
        self.open_dids = {*dids, *able}
        dids += able[:SHOWN_MAX]
        if dids:
            return dids, None
        choice = self._weigh_offers(self._offers_of(action), action, at_ms, payer_did)
        assert isinstance(choice, Failure)
        return [], choice

    def _offers_of(self, action: SelectAgent | SelectVerifier) -> Sequence[AgentEntry]:
        return list(self._by_capability.get(action.capability_id, {}).values())

    def _weigh_offers(
        self,
        offers: Sequence[AgentEntry],
        action: SelectAgent | SelectVerifier,
        at_ms: int,
        payer_did: str,
        without_owners: Set[str] = frozenset(),
    ) -> Choice | Failure:
        candidates = [self._build_candidate(entry, action, at_ms, payer_did) for entry in offers]
        candidates = [
            one._replace(excluded=OWNER_FAILED)
            if self._entries[one.did].owner_did in without_owners
            and one.excluded not in (VERIFIER_NOT_ACCEPTED, TOO_SLOW)
            else one
            for one in candidates
        ]
        most_micro = action.price_max_micro
        seed = None
        if len(offers) > 1 and isinstance(action, SelectAgent):
            seed = trial_seed(action.workflow_id, action.node, action.attempt)
        choice = weigh_all(candidates, price_max_micro=most_micro, rules=self._rules, seed=seed)
        if choice.did is None and self.stakes.is_required:
            candidates = [
                one._replace(excluded=None) if one.excluded == STAKE_LOCKED else one
                for one in candidates
            ]
            choice = weigh_all(candidates, price_max_micro=most_micro, rules=self._rules, seed=seed)
        if choice.did is not None:
            self.open_dids = {
                one.did
                for one in candidates
                if one.excluded is None and (one.price_micro <= most_micro or not one.is_bounded)
            }
            return choice
        is_dear = any(one.excluded is None for one in candidates)
        code = NodeErrorCode.BUDGET_EXCEEDED if is_dear else NodeErrorCode.NO_CANDIDATE
        return Failure(code, "", Verdict.FINAL)

    def _build_candidate(
        self, entry: AgentEntry, action: SelectAgent | SelectVerifier, at_ms: int, payer_did: str
    ) -> Candidate:
        did = entry.did
        price = self._asking_price(entry, action)
        excluded = self._find_unavailability(did, at_ms, payer_did=payer_did)
        is_by_token = isinstance(price, TokenPrice)
        if is_by_token and not (isinstance(action, SelectAgent) and action.is_by_token):
            excluded = excluded or PAID_BY_TOKENS
        if isinstance(action, SelectAgent) and action.verifier_capability_id:
            verifiers = self._by_capability.get(action.verifier_capability_id, {}).values()
            if not any(
                self._may_verify(one, entry.accepted_verifiers, entry.owner_did, payer_did)
                for one in verifiers
            ):
                excluded = VERIFIER_NOT_ACCEPTED
        if isinstance(action, SelectAgent) and action.timeout_ms is not None:
            promised_ms = entry.promised_ms.get(action.capability_id)
            if promised_ms is not None and promised_ms > action.timeout_ms:
                excluded = TOO_SLOW
        if isinstance(action, SelectAgent) and self.stakes.is_required:
            required_micro = self._stake_micro(did, price, action.price_max_micro)
            excluded = excluded or self.stakes.find_shortage(did, required_micro)
        return Candidate(
            did,
            cost_micro(price, TYPICAL),
            self._in_flight[did],
            entry.max_concurrency,
            entry.order,
            reported_load(self._known_liveness(did), at_ms),
            self.standings.of(did),
            excluded,
            not is_by_token,
        )
