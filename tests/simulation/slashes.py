"""What every attempt of a run cost its agent's stake, against what the agent is known to have done.

Reference: money.md (Slashing).
"""

from __future__ import annotations

from collections.abc import Collection

from core.errors import NodeErrorCode
from core.market.reputation import PROMISED_MS
from core.settings import Settings
from core.workflow.events import Failure
from core.workflow.transitions import NodeStatus
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.money_model import Row
from tests.simulation.shapes import eta_of
from tests.simulation.simulated_agents import FORGED, LAST_WORDS

SLASH_BPS, FRAUD_BPS = Settings().slash_failure_bps, Settings().slash_fraud_bps
FAILED = (NodeStatus.FAILED, NodeStatus.TIMEOUT)
GUILTY = (
    "AGENT_ERROR", "AGENT_TIMEOUT", "INVALID_REPLY", "RESULT_TOO_LARGE", "OUTPUT_SCHEMA",
    "VERIFICATION_REJECTED",
)  # fmt: skip


def wrong_slash(
    model: LedgerModel,
    attempt: Row,
    node: Row,
    heard: Collection[bool | Failure],
    *,
    is_rejected: bool,
    is_own_last: bool,
) -> str | None:
    """Say what is wrong with what an attempt cost, None if nothing is.

    An agent that signs wrongly loses by that attempt, whatever becomes of the node. Any other loses
    by the attempt after which it was given up, if it failed that one by its own doing: the node's
    last, or its own last one before it was excluded.

    Args:
        heard: what its agent has answered.
        is_own_last: whether the agent had no later attempt at the node.
        is_rejected: whether a verifier has rejected its result.
    """
    number = attempt["attempt"]
    ended = model.ended_locks.get((attempt["workflow_id"], attempt["node"], number))
    if ended is None:
        return None
    did, locked, lost = ended
    if did != attempt["agent_did"]:
        return f"{did}'s lock was freed"
    if attempt.get("error_message") == FORGED.message:
        due = locked * FRAUD_BPS // 10_000
        return None if lost == due and FORGED in heard else f"forgery cost {lost} of {locked}"
    is_nodes_end = number == node["attempt"] and node["status"] in FAILED
    is_excluded = is_own_last and did in node.get("agents_tried", ())
    # An attempt whose result came, and cost stake nevertheless, was rejected by its verifier.
    code = attempt.get("error_code") or NodeErrorCode.VERIFICATION_REJECTED
    share = locked * SLASH_BPS // 10_000
    if lost == 0:
        message = attempt.get("error_message")
        is_last_word = any(message == word.message for word in LAST_WORDS if word in heard)
        is_due = share > 0 and is_last_word
        return f"{did} was given up after {code} and lost nothing" if is_due else None
    if lost != share:
        return f"failure cost {lost} of {locked}"
    if not is_nodes_end and not is_excluded:
        return f"failure cost {lost}, but the agent was not given up"
    if code == NodeErrorCode.VERIFICATION_REJECTED:
        is_due = is_rejected
    elif code == NodeErrorCode.AGENT_TIMEOUT:
        # Who is silent has said nothing, and had the time that it promised.
        promised_ms = PROMISED_MS if (eta_ms := eta_of(did)) is None else eta_ms
        is_due = attempt["completed_ms"] - attempt["started_ms"] >= promised_ms
    else:
        is_due = any(isinstance(r, Failure) and r.code == code and not r.is_spared for r in heard)
    return None if is_due and code in GUILTY else f"{lost} lost without a cause"
