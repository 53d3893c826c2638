"""The directory of a workflow owner: its cache of agents, which selects agents for nodes.

The cache contains the agents' cards, the health that agents report, and the health that this owner
observes. `DirectorySync` fills the cache from rows of the ledger and keeps it fresh.
`core/market/ranking.py` ranks agents; `core/market/agent_liveness.py` judges heartbeats and probes.
Reference: features.md (Targeted routing).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import islice
from typing import Any

from msgspec.structs import replace

from actors.directory.agent_stakes import STAKE_LOCKED, UNDER_STAKED, Stakes
from actors.directory.agent_standings import Standings
from actors.directory.cards import CardReader
from actors.directory.health.agent_health import (
    DEPARTED_MS,
    PASSING,
    AgentHealth,
    find_owners,
    find_payer_owners,
)
from actors.directory.offered_schemas import OfferedSchemas
from actors.directory.offers.acceptance import Acceptance, both
from actors.directory.offers.asked_prices import AskedPrices
from actors.directory.offers.verifier_offers import VerifierOffers
from actors.directory.published_versions import NOT_OFFERED, PublishedVersions
from actors.directory.ranked_offers import (
    CHOOSY_ONLY,
    OfferRankings,
    RankedOffers,
    Terms,
    Weighed,
    build_weighed,
)
from actors.directory.subnets import Subnets
from actors.ports import AgentEntry, AskingPrices
from actors.values.agent_schemas import AgentSchemas
from core.errors import NodeErrorCode
from core.market.no_candidates import (
    FAILED_BEFORE,
    NOT_ACCEPTED,
    OWNER_FAILED,
    REGION_REFUSED,
    SAME_OWNER,
    TOO_SLOW,
    VERIFIER_NOT_ACCEPTED,
    CapabilityHints,
    explain,
)
from core.market.pricing import (
    FixedPrice,
    Price,
    TokenPrice,
    Tokens,
    asks_price,
    cost_micro,
    effective_price,
)
from core.market.ranked_candidates import Accepts, Best, Node
from core.market.ranking import DEFAULT_RULES, SHOWN_MAX, TOO_DEAR, Candidate, Choice, RankingRules
from core.money import credits_text
from core.trust.deployment_keys import DeploymentKeys
from core.workflow.actions import SelectAgent, SelectBidder, SelectVerifier
from core.workflow.dag import CompiledNode
from core.workflow.events import AgentNotSelected, AgentSelected, Failure, Verdict, VerifierSelected

log = logging.getLogger("callboard.owner")

PAID_BY_TOKENS = "paid_by_tokens"
# Token counts at which prices per token are compared: about one page of input and of output.
TYPICAL = Tokens(1_000, 1_000)


class Directory(AgentHealth):
    """The registered agents by DID and by capability.

    Args:
        service: the service name, which is `<service>` in dispatch paths.
        deployment_keys: unseal signing secrets.
        default_secret: signs dispatches to agents without a secret of their own, or None.
        max_concurrency: the concurrency of agents whose card has no `maxConcurrency`.
        rules: the weights of the ranking.
        latency_ms_max: the average latency at which the speed score is 0, milliseconds.
        stake_bps: the stake required of an agent, basis points of the node's price.
        schemas: the cache for the schemas of the cards; None: a new cache.
        trusted_verifiers: the DIDs that the settings trust to verify.
        region: the region of this deployment.
    """

    def __init__(
        self,
        *,
        service: str,
        deployment_keys: DeploymentKeys,
        default_secret: str | None,
        max_concurrency: int,
        rules: RankingRules = DEFAULT_RULES,
        latency_ms_max: int = 60_000,
        stake_bps: int = 0,
        schemas: AgentSchemas | None = None,
        trusted_verifiers: Collection[str] = (),
        region: str = "",
    ) -> None:
        super().__init__()
        kept = schemas or AgentSchemas()
        self._cards = CardReader(
            service, deployment_keys, default_secret, max_concurrency, kept, trusted_verifiers
        )
        self._offered_schemas = OfferedSchemas(kept)
        self._rules = rules
        self._rankings = OfferRankings(rules, self._weigh)
        self.standings = Standings(latency_ms_max, self._mark)
        self.note_refusal = self.standings.note_refusal
        self.stakes = Stakes(stake_bps, self._mark)
        self.published = PublishedVersions()
        self.subnets = Subnets(self._by_capability, region)
        self.find_rates = self.subnets.find_rates
        self._hints = CapabilityHints()
        self._verifiers = VerifierOffers(self._entries, self._by_capability)
        self._acceptance = Acceptance(self._entries, self._verifiers, self.subnets)
        self._prices = AskedPrices(
            self.subnets.find_offers,
            self._rankings,
            self.published,
            self._acceptance.find_of_node,
            requires_stake=stake_bps > 0,
        )
        self.available_prices = self._prices.find_available
        self._order = 0

    # -- contents ---------------------------------------------------------------------------------

    def put(self, rows: Iterable[Mapping[str, Any]], *, at_ms: int = 0) -> None:
        """Store agents from rows (`did, owner_did, card, endpoint, status, signing_secret`).

        Args:
            rows: the rows. `updated_ms` is the time of the registration or deregistration, if
                known. Heartbeats before this time belong to an earlier registration.
            at_ms: now, Unix milliseconds.
        """
        for row in rows:
            did = row["did"]
            known = self._remove(did)
            self._inactive.discard(did)
            if row["status"] != "active":
                self._inactive.add(did)
                left_ms = row.get("updated_ms", -DEPARTED_MS)
                if left_ms + DEPARTED_MS <= at_ms:
                    continue
                self._left_ms[did] = left_ms
            self._stored_ms[did] = row.get("updated_ms", 0)
            if known is None:
                self._order += 1
            order = known.order if known else self._order
            try:
                entry = self._cards.build_entry(row, order)
            except Exception:  # the edge of one card: the other agents are still stored
                log.exception("card not readable, its agent gets no work agent=%s", did)
                self._left_ms.pop(did, None)
                self._inactive.add(did)
                continue
            self._index(entry)
            if row["status"] == "active":
                self._circuits.note_registered(did)
                self._declines.note_registered(did)
                self.on_changed(did, entry.prices)

    def forget_departed(self, at_ms: int) -> None:
        """Forget the cards of agents that were deregistered at least `DEPARTED_MS` ago."""
        for did in [one for one, ms in self._left_ms.items() if ms + DEPARTED_MS <= at_ms]:
            entry = self._remove(did)
            assert entry is not None
            self.on_changed(did, entry.prices)

    def count_silence_from(self, at_ms: int) -> None:
        """Judge missing heartbeats only from this time on: earlier heartbeats may be lost."""
        self._silent_from_ms = at_ms
        self._conditions.clear()
        self._rankings.clear()

    def apply_prices(self, prices: Mapping[str, Price]) -> None:
        """Store registered prices by capability."""
        self._prices.apply(prices)
        for capability_id in prices:
            for entry in self._by_capability.get(capability_id, {}).values():
                self._note_asking(entry)

    def asking_prices(
        self, capability_id: str, target_agent_id: str | None, *, payer_did: str = ""
    ) -> AskingPrices:
        """Return the prices that a node may be asked to pay (`AskedPrices.find`)."""
        return self._prices.find(capability_id, target_agent_id, payer_did)

    def peer_prices(self, node: CompiledNode, capability_id: str, payer_did: str) -> Sequence[int]:
        """Return the prices of a node at peers; empty, because only `PeerDirectory` has peers."""
        return ()

    def schemas_of(
        self, capability_id: str, target_agent_id: str | None, *, is_output: bool
    ) -> Sequence[bytes]:
        """Return the texts of the schemas of the agents that a node may get; empty if unknown."""
        offers = self._by_capability.get(capability_id, {})
        if target_agent_id is None:
            return self._offered_schemas.texts(capability_id, len(offers), is_output=is_output)
        entry = offers.get(target_agent_id)
        if entry is None:
            return ()
        return self._offered_schemas.text(entry, capability_id, is_output=is_output)

    # -- selection --------------------------------------------------------------------------------

    def select(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """Answer a machine's `SelectAgent`: the target, or the best of the healthy candidates.

        Args:
            payer_did: the payer of the workflow, also in the methods below. With "" (no payer),
                agents in private subnets are hidden, and no policies and circuits of a payer apply.
        """
        if (refused := self.subnets.find_refusal(payer_did, action.capability_id)) is not None:
            return AgentNotSelected(action.node, refused, at_ms)
        if action.versions:
            return self._select_version(action, at_ms, payer_did)
        if action.target_agent_id is not None:
            unavailable = self._find_target_failure(action, at_ms, payer_did)
            if unavailable is None:
                self._note_chosen(action.target_agent_id, at_ms)
                return self._selected(action, action.target_agent_id, at_ms, None, payer_did)
            if not action.allow_fallback:
                return AgentNotSelected(action.node, unavailable, at_ms)
        ranking = self._find_ranking(action, at_ms, payer_did)
        node = self._find_node(action, at_ms, payer_did)
        best = self._acceptance.choose(ranking, action, node)
        if best is None:
            failure = self._build_failure(action, ranking, node, at_ms, payer_did)
            return AgentNotSelected(action.node, failure, at_ms)
        reasons = self._build_reasons(ranking, action, node, best, at_ms, payer_did)
        self._note_chosen(best.did, at_ms)
        return self._selected(action, best.did, at_ms, reasons, payer_did)

    def _select_version(
        self, action: SelectAgent, at_ms: int, payer_did: str
    ) -> AgentSelected | AgentNotSelected:
        """Answer a selection that names a version range: the first version with an agent wins."""
        refused: list[Failure] = []
        node = self._find_node(action, at_ms, payer_did)

        def can_take(version_id: str) -> bool:
            ranked = self._find_ranking(action, at_ms, payer_did, version_id)
            return self._acceptance.choose(ranked, action, node) is not None

        for one in self._split_by_version(action, can_take, payer_did):
            answer = self.select(one, at_ms, payer_did=payer_did)
            if isinstance(answer, AgentSelected):
                return answer
            refused.append(answer.failure)
        failure = self._most_telling(refused, action)
        return AgentNotSelected(action.node, failure, at_ms)

    def _most_telling(self, refused: Sequence[Failure], action: SelectAgent) -> Failure:
        is_temporary = any(one.is_temporary for one in refused)
        failure = self.published.find_most_telling(refused, action)
        return replace(failure, is_temporary=is_temporary)

    def _split_by_version(
        self, action: SelectAgent, can_take: Callable[[str], bool], payer_did: str
    ) -> Iterator[SelectAgent]:
        target = self._entries.get(action.target_agent_id or "")
        own = None if target is None else target.versions.get(action.capability_id)

        def is_offered(version_id: str) -> bool:
            return bool(self.subnets.find_offers(version_id, payer_did)[1])

        return self.published.split(action, is_offered, own, can_take)

    def select_verifier(
        self, action: SelectVerifier, at_ms: int, *, payer_did: str = ""
    ) -> VerifierSelected | AgentNotSelected:
        """Answer a machine's `SelectVerifier` with a healthy verifier.

        The verifier's owner must be neither the owner of the primary (the agent whose result is
        judged) nor the payer's owner. The verifier is trusted. If the payer has chosen a verifier
        capability, it is instead a verifier that the primary's card accepts.
        """
        if (refusal := self.subnets.find_refusal(payer_did, action.capability_id)) is not None:
            return AgentNotSelected(action.node, refusal, at_ms)
        primary = self._entries.get(action.primary_did)
        primary_owner = primary.owner_did if primary is not None else action.primary_did
        may_verify, only = self._verifiers.who_may_verify(action, payer_did)
        accepts = both(may_verify, self._acceptance.find_permitted(action, payer_did))
        ranking = self._find_ranking(action, at_ms, payer_did, only=only)
        refused = self._find_refused(action, at_ms, payer_did)
        most_micro = action.price_max_micro
        node = Node(most_micro, most_micro, refused, (primary_owner,), accepts)
        best = ranking.free.choose(node)
        if best is None:
            failure = self._build_failure(action, ranking, node, at_ms, payer_did)
            return AgentNotSelected(action.node, failure, at_ms)
        self._note_chosen(best.did, at_ms)
        entry = self._entries[best.did]
        price = self._asking_price(entry, action)
        assert isinstance(price, FixedPrice), "a verifier is not paid by tokens"
        return VerifierSelected(action.node, best.did, price.micro, at_ms, entry.is_trusted)

    def list_available_agents(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> tuple[list[str], Failure | None]:
        """Return some agents that could take a node now, or the failure if there are none.

        The rules are those of `select`, but price limit and stakes are ignored for all agents
        except the target, and nothing is selected. At most `SHOWN_MAX` agents and the target are
        returned.
        """
        if (refused := self.subnets.find_refusal(payer_did, action.capability_id)) is not None:
            return [], refused
        if action.versions:
            return self._list_of_version(action, at_ms, payer_did)
        dids: list[str] = []
        if action.target_agent_id is not None:
            failure = self._find_target_failure(action, at_ms, payer_did)
            if failure is None:
                dids.append(action.target_agent_id)
            if not action.allow_fallback:
                return dids, failure
        ranking = self._find_ranking(action, at_ms, payer_did)
        node = self._find_node(action, at_ms, payer_did)
        node = node._replace(refused=node.refused | set(dids))
        dids += islice(filter(node.admits, ranking.able), SHOWN_MAX)
        if dids:
            return dids, None
        return [], self._build_failure(action, ranking, node, at_ms, payer_did)

    def _list_of_version(
        self, action: SelectAgent, at_ms: int, payer_did: str
    ) -> tuple[list[str], Failure | None]:
        refused: list[Failure] = []
        node = self._find_node(action, at_ms, payer_did)

        def can_take(version_id: str) -> bool:
            ranked = self._find_ranking(action, at_ms, payer_did, version_id)
            return any(map(node.admits, ranked.able))

        for one in self._split_by_version(action, can_take, payer_did):
            dids, failure = self.list_available_agents(one, at_ms, payer_did=payer_did)
            if failure is None:
                return dids, None
            refused.append(failure)
        return [], self._most_telling(refused, action)

    def _selected(
        self, action: SelectAgent, did: str, at_ms: int, reasons: str | None, payer_did: str = ""
    ) -> AgentSelected:
        entry = self._entries[did]
        price = self._asking_price(entry, action)
        fixed_micro, by_token = (0, price) if isinstance(price, TokenPrice) else (price.micro, None)
        return AgentSelected(
            action.node,
            did,
            fixed_micro,
            at_ms,
            reasons,
            by_token,
            self._stake_micro(did, price, action.price_max_micro),
            None,
            entry.find_promise_ms(action.capability_id),
            entry.owner_did in find_payer_owners(self._entries, payer_did),
        )

    def _stake_micro(self, did: str, price: Price, token_limit_micro: int) -> int:
        """Return the stake for a fixed price, or, with a price per token, for the node's limit."""
        if not self.stakes.is_required:
            return 0
        most_micro = token_limit_micro if isinstance(price, TokenPrice) else price.micro
        return self.stakes.required_micro(most_micro, self.standings.of(did).score)

    def _asking_price(self, entry: AgentEntry, action: SelectAgent | SelectVerifier) -> Price:
        """Return the price of an agent for the node: from its card, else the registered price."""
        own = entry.prices[action.capability_id]
        if isinstance(action, SelectVerifier):
            return effective_price(own, self._prices.registered.get(action.capability_id))
        return effective_price(own, action.price)

    def _weigh(self, capability_id: str, terms: Terms, entry: AgentEntry, at_ms: int) -> Weighed:
        """Return an agent as a candidate for all payers, with the time until which this holds.

        For an agent paid by tokens, the required stake depends on the node's price limit. So the
        candidate contains the highest price limit for which the agent's stake suffices.
        """
        did = entry.did
        price = effective_price(entry.prices[capability_id], terms.price)
        condition = self._find_condition(did, at_ms)
        barred: str | None = None
        is_by_token = isinstance(price, TokenPrice)
        if terms.only and (bar := terms.find_bar(entry)) is not None:
            barred = bar
        elif is_by_token and not terms.is_by_token:
            barred = PAID_BY_TOKENS
        elif terms.requires_stake and not is_by_token:
            barred = self.stakes.find_shortage(did, self._stake_micro(did, price, 0))
        excluded = condition.excluded or barred
        candidate = Candidate(
            did,
            _typical_cost_micro(price) if isinstance(price, TokenPrice) else price.micro,
            self._in_flight.get(did, 0),
            entry.max_concurrency,
            entry.order,
            condition.load,
            self.standings.ranked(did),
            excluded,
            not is_by_token,
            entry.owner_did,
        )
        if excluded is not None or not (is_by_token and terms.requires_stake):
            return build_weighed(candidate, condition, barred)
        free_micro, whole_micro = self.stakes.find_limits(did, self.standings.of(did).score)
        locked = None
        if free_micro < whole_micro:
            locked = candidate._replace(excluded=STAKE_LOCKED, limit_micro_max=whole_micro)
        candidate = candidate._replace(limit_micro_max=free_micro)
        return Weighed(candidate, locked, None, True, condition.until_ms)

    def _find_ranking(
        self,
        action: SelectAgent | SelectVerifier,
        at_ms: int,
        payer_did: str,
        version_id: str = "",
        *,
        only: str = "",
    ) -> RankedOffers:
        """Return the current ranking of the agents that offer the capability or a version of it."""
        offered_id = version_id or action.capability_id
        scope, entries = self.subnets.find_offers(offered_id, payer_did)
        if isinstance(action, SelectVerifier):
            terms = Terms(self._prices.registered.get(action.capability_id), False, False, only)
        else:
            if action.verifier_capability_id and not self._verifiers.has_trusted(
                action.verifier_capability_id
            ):
                only = CHOOSY_ONLY  # no verifier is trusted: skip agents that accept no others
            terms = Terms(action.price, action.is_by_token, self.stakes.is_required, only)
        if scope:
            terms = terms._replace(scope=scope)
        return self._rankings.find(offered_id, terms, entries, at_ms)

    def _find_node(self, action: SelectAgent, at_ms: int, payer_did: str) -> Node:
        """Return the conditions under which a node may take an agent."""
        refused = self._find_refused(action, at_ms, payer_did)
        accepts = self._acceptance.find(action, payer_did)
        return Node(action.price_max_micro, action.price_max_micro, refused, (), accepts)

    def _find_refused(
        self, action: SelectAgent | SelectVerifier | SelectBidder, at_ms: int, payer_did: str
    ) -> Set[str]:
        """Return the agents that a node may not take.

        These are the agents that the action excludes, and the agents that are shut for the payer:
        several of the payer's own attempts at them got no reply (`Circuits`).
        """
        shut = self._circuits.find_shut(payer_did, at_ms)
        return shut | set(action.exclude) if action.exclude else shut

    def _build_reasons(
        self,
        ranking: RankedOffers,
        action: SelectAgent,
        node: Node,
        best: Best,
        at_ms: int,
        payer_did: str,
    ) -> str | None:
        """Return the reasons of a choice as JSON text; None if there was only one agent."""
        _, entries = self.subnets.find_offers(action.capability_id, payer_did)
        offering = len(entries) - len(entries.keys() & action.exclude)
        if offering == 1:
            return None
        excluded: list[tuple[Candidate, str]] = []
        room = min(SHOWN_MAX, offering) - len(best.candidates)
        if room > 0:
            passed = {*action.exclude, *(one.did for one in best.candidates)}
            # Most of these agents are excluded, and the reasons are shown. If there are very many
            # agents, some of `others` may be eligible: then `_find_reason` returns None.
            others = [did for did in islice(entries, len(passed) + room) if did not in passed]
            is_free = best.candidates[0].excluded is None
            failed = find_owners(self._entries, action.exclude)
            if best.candidates[0].owner_did not in failed:
                node = node._replace(owners=failed)
            permitted = self._acceptance.find_permitted(action, payer_did)
            for one in map(ranking.find, others):
                reason = self._find_reason(
                    one, action, node, at_ms, payer_did, permitted, is_free=is_free
                )
                if reason is not None and len(excluded) < room:
                    excluded.append((one, reason))
        unshown = offering - len(best.candidates) - len(excluded)
        choice = Choice(
            best.candidates, excluded, best.cheapest_micro, self._rules, unshown, best.is_trial
        )
        return choice.to_text()

    def _find_reason(
        self,
        one: Candidate,
        action: SelectAgent | SelectVerifier,
        node: Node,
        at_ms: int,
        payer_did: str,
        permitted: Accepts | None,
        *,
        is_free: bool = True,
    ) -> str | None:
        """Return why a node may not take an agent; None if it may.

        Args:
            permitted: says which agents the payer's region policies permit; None: all.
            is_free: whether a locked stake excludes an agent.
        """
        did, is_verification = one.did, isinstance(action, SelectVerifier)
        timely = self._acceptance.find_timely(action)
        if did in action.exclude:
            return FAILED_BEFORE
        if timely is not None and not timely(did):
            return TOO_SLOW
        if permitted is not None and not permitted(did):
            return REGION_REFUSED
        if node.accepts is not None and not node.accepts(did):
            return NOT_ACCEPTED if is_verification else VERIFIER_NOT_ACCEPTED
        if one.owner_did in node.owners:
            return SAME_OWNER if is_verification else OWNER_FAILED
        if did in node.refused:
            return self._find_unavailability(did, at_ms, payer_did=payer_did)
        if one.excluded is not None and (is_free or one.excluded != STAKE_LOCKED):
            return one.excluded
        if one.is_bounded:
            return TOO_DEAR if one.price_micro > action.price_max_micro else None
        if one.limit_micro_max >= action.price_max_micro:
            return None
        required_micro = self.stakes.required_micro(action.price_max_micro, one.standing.score)
        return self.stakes.find_shortage(did, required_micro)

    def _build_failure(
        self,
        action: SelectAgent | SelectVerifier,
        ranking: RankedOffers,
        node: Node,
        at_ms: int,
        payer_did: str,
    ) -> Failure:
        """Return why a node may take none of the agents that offer its capability.

        `is_temporary` is set if an agent that could take the node is temporarily unavailable. Such
        an agent is in `away`, or in `free` if only a circuit of this payer excludes it.
        """
        capability_id, left_micro = action.capability_id, action.price_max_micro
        cheapest_micro = ranking.find_cheapest(node)
        if cheapest_micro is not None:
            message = f"the cheapest agent for {capability_id!r} costs "
            message += (
                f"{credits_text(cheapest_micro)} credits, {credits_text(left_micro)} are left"
            )
            message += " for the node; agents that cost more are not considered"
            code = NodeErrorCode.BUDGET_EXCEEDED
        else:
            (_, offers), hint = self.subnets.find_offers(capability_id, payer_did), ""
            if not offers:
                hint = self._hints.find(capability_id, self._by_capability, at_ms)
            permitted = self._acceptance.find_permitted(action, payer_did)
            found = (
                self._find_reason(ranking.find(did), action, node, at_ms, payer_did, permitted)
                for did in offers
            )
            reasons = (reason or UNDER_STAKED for reason in found)
            message = explain(capability_id, len(offers), reasons, hint)
            code = NodeErrorCode.NO_CANDIDATE
        untried = node._replace(refused=set(action.exclude))
        kinds = (ranking.away, ranking.free)
        is_temporary = any(one.find_cheapest(untried) is not None for one in kinds)
        return Failure(code, message, Verdict.FINAL, is_temporary=is_temporary)

    def _find_target_failure(
        self, action: SelectAgent, at_ms: int, payer_did: str
    ) -> Failure | None:
        target = action.target_agent_id
        assert target is not None
        details = self._find_unavailability(
            target, at_ms, payer_did=payer_did, is_excluded=target in action.exclude
        )
        entry = self._entries.get(target)
        if entry is not None and self.subnets.is_hidden(entry, payer_did):
            entry, details = None, "agent_not_found"
        if entry is not None:
            refused = self.subnets.find_refusal(payer_did, action.capability_id, entry.region)
            if refused is not None:
                return refused
        unpayable = None
        if entry is not None and action.capability_id in entry.prices:
            unpayable = self._verifiers.find_failure(entry, action, payer_did)
            unpayable = unpayable or self._find_price_failure(entry, action)
            if details is None:
                return unpayable
        details = details or NOT_OFFERED
        is_away = entry is not None and bool(entry.url) and action.capability_id in entry.prices
        is_temporary = is_away and details in PASSING and target not in action.exclude
        return Failure(
            NodeErrorCode.AGENT_UNAVAILABLE,
            f"{target} cannot take {action.capability_id!r}: {details}",
            Verdict.FINAL,
            details=details,
            target_agent_id=target,
            is_temporary=is_temporary and unpayable is None,
        )

    def _find_price_failure(self, entry: AgentEntry, action: SelectAgent) -> Failure | None:
        price = self._asking_price(entry, action)
        required_micro = self._stake_micro(entry.did, price, action.price_max_micro)
        if self.stakes.find_shortage(entry.did, required_micro) == UNDER_STAKED:
            message = f"{entry.did} has staked less than {credits_text(required_micro)} credits"
            return Failure(NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL)
        if isinstance(price, TokenPrice):
            if action.is_by_token:
                return None
            message = f"{entry.did} is paid by tokens, and the node's price is fixed"
        elif price.micro <= action.price_max_micro:
            return None
        else:
            left = f"{credits_text(action.price_max_micro)} are left"
            message = f"{entry.did} asks {credits_text(price.micro)} credits, {left}"
        return Failure(NodeErrorCode.BUDGET_EXCEEDED, message, Verdict.FINAL)

    # -- health -----------------------------------------------------------------------------------

    def _mark(self, did: str) -> None:
        """Mark an agent as changed, so that the next choice weighs it again."""
        entry = self._entries.get(did)
        if entry is not None:
            self._rankings.mark(did, entry.prices)

    def _note_asking(self, entry: AgentEntry) -> None:
        has_bid = bool(entry.standing)
        is_asking = asks_price(entry.prices, self._prices.registered, has_bid=has_bid)
        self.standings.note_asking(entry.did, asks_price=is_asking)

    # -- rows -------------------------------------------------------------------------------------

    def _remove(self, did: str) -> AgentEntry | None:
        self._note_changed(did)
        entry = self._entries.pop(did, None)
        self._stored_ms.pop(did, None)
        self._left_ms.pop(did, None)
        if entry is not None and entry.url and entry.private_subnet:
            self.subnets.remove(entry)
        elif entry is not None and entry.url:
            self._offered_schemas.count(entry, -1)
            self._verifiers.count(entry, -1)
            for capability_id in entry.prices:
                offers = self._by_capability[capability_id]
                del offers[did]
                self._prices.forget(capability_id)
                if not offers:
                    del self._by_capability[capability_id]
                    self._rankings.drop(capability_id)
        return entry

    def _index(self, entry: AgentEntry) -> None:
        self._entries[entry.did] = entry
        self._mark(entry.did)
        self._note_asking(entry)
        if not entry.url:
            return  # an agent without an endpoint has a card, but gets no dispatches
        if entry.private_subnet:
            self.subnets.add(entry)
            return
        self._offered_schemas.count(entry, 1)
        self._verifiers.count(entry, 1)
        for capability_id in entry.prices:
            self._by_capability.setdefault(capability_id, {})[entry.did] = entry
            self._prices.forget(capability_id)


@lru_cache(maxsize=4_096)
def _typical_cost_micro(price: TokenPrice) -> int:
    return cost_micro(price, TYPICAL)
