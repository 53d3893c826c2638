"""Work that is taken from revoked agents: their attempts end unpaid, and others may go on.

Whatever a revoked agent has not been paid for counts for nothing, a result that waits for its
verification included. It is not blamed: what it has done wrong, whoever revoked it knows.
Spec: Revocation; contract.md section 6 (Revocation); money.md case 19. Decision 0085.
"""

from __future__ import annotations

from typing import Final

from core.errors import NodeErrorCode
from core.workflow.actions import AbortDispatch, Decision
from core.workflow.events import AgentRevoked, Failure, Verdict
from core.workflow.node_state import NodeState
from core.workflow.rules.verification import VerifyingProgress

REASON: Final = "policy_violation"


class RevokingProgress(VerifyingProgress):
    """`Progress` whose agents can be revoked while they are at work."""

    def agents_at_work(self) -> set[str]:
        """Return who has something to do or to judge here."""
        found = set()
        for state in self._states.values():
            if state.is_active:
                found |= {did for did in (state.agent_did, state.verifier_did) if did is not None}
        return found

    def _agent_revoked(self, event: AgentRevoked, decision: Decision) -> None:
        for state in self._states.values():
            if not state.is_active:
                continue
            if state.agent_did == event.agent_did:
                self._take_node(state, event, decision)
            elif state.verifier_did == event.agent_did:
                self._take_judgement(state, event, decision)

    def _take_node(self, state: NodeState, event: AgentRevoked, decision: Decision) -> None:
        failure = _revoked(event.agent_did)
        self._abort(state, failure, "discarded", event.at_ms, decision, REASON)
        state.retry_at_ms = None  # of a verifier that was waited for
        self._fail_attempt(state, failure, event.at_ms, decision)

    def _take_judgement(self, state: NodeState, event: AgentRevoked, decision: Decision) -> None:
        failure = _revoked(event.agent_did)
        decision.records.append(self._verification_line(state, "discarded", event.at_ms, failure))
        decision.actions.append(
            AbortDispatch(state.compiled.name, state.attempt, event.agent_did, REASON)
        )
        self._verifier_failed(state, failure, event.at_ms, decision)


def _revoked(agent_did: str) -> Failure:
    message = f"{agent_did} was revoked while it was at work"
    return Failure(NodeErrorCode.REVOKED, message, Verdict.FINAL_FOR_AGENT)
