"""What an attempt may cost and what it has cost: fixed before the work, or by tokens after it.

An agent paid by tokens gets the node's reservation as its limit. What it costs above that is paid
out of money that nobody has reserved, if there is enough and the node's own limit allows it;
otherwise the node fails unpaid. Spec: Settlement rules 6, Verification and budget 2; money.md R3,
cases 7 and 17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from core.errors import NodeErrorCode
from core.market.pricing import cost_micro, price_from_json, price_json, tokens_of
from core.money import credits_text
from core.workflow.events import AgentSelected, Failure, Verdict, VerifierSelected
from core.workflow.node_state import NodeState
from core.workflow.rules.auction_rounds import AuctioningProgress
from core.workflow.terms import NO_TERMS


class PayingProgress(AuctioningProgress):
    """`Progress` that knows what attempts cost."""

    def _price_of_attempt(self, event: AgentSelected) -> int:
        """Return what the attempt reserves: its price, or the limit of one paid by tokens."""
        if event.token_price is None:
            return event.price_micro
        verifier_micro = self._verifier_micro(event.node)
        own_micro = self._budget.reserved_micro(event.node) - verifier_micro
        return max(0, min(own_micro, self._price_max_micro(self._states[event.node])))

    def _set_token_price(self, state: NodeState, event: AgentSelected) -> None:
        price = event.token_price
        state.price_json = None if price is None else orjson.dumps(price_json(price)).decode()

    def _settle_tokens(self, state: NodeState, metrics: Mapping[str, Any]) -> Failure | None:
        """Turn the tokens of a result into its price; a failure where that is above its limit."""
        if state.price_json is None:
            return None
        name = state.compiled.name
        due_micro = cost_micro(price_from_json(orjson.loads(state.price_json)), tokens_of(metrics))
        verifier_micro = self._verifier_micro(name)
        most_micro = max(0, self._price_max_micro(state) - verifier_micro)
        if due_micro > most_micro:
            return Failure(
                NodeErrorCode.BUDGET_EXCEEDED,
                f"its tokens cost {credits_text(due_micro)} credits,"
                f" {credits_text(most_micro)} are left for the node",
                Verdict.FINAL,
            )
        state.price_micro = due_micro
        self._budget.reserve(name, due_micro + verifier_micro)
        return None

    def _verifier_micro(self, name: str) -> int:
        """Return what is kept for the verifier of a node that may be paid by tokens."""
        return self._terms.get(name, NO_TERMS).verifier_micro

    def _too_dear(self, event: AgentSelected | VerifierSelected, limit_micro: int) -> Failure:
        return Failure(
            NodeErrorCode.BUDGET_EXCEEDED,
            f"{event.agent_did} costs {event.price_micro} micro-credits, {limit_micro} are left",
            Verdict.FINAL,
        )
