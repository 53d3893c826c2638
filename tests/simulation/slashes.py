"""What every attempt of a run cost its agent's stake, against what the agent is known to have done.

Spec: Settlement rules 8; contract.md section 6 (Slash triggers); money.md cases 27 and 29.
"""

from __future__ import annotations

from collections.abc import Collection

from core.errors import NodeErrorCode
from core.settings import Settings
from core.workflow.events import Failure
from core.workflow.transitions import NodeStatus
from tests.simulation.agents import FORGED
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.money_model import Row

SLASH_BPS, FRAUD_BPS = Settings().slash_failure_bps, Settings().slash_fraud_bps
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
) -> str | None:
    """Say what is wrong with what an attempt cost, None if nothing is.

    Whoever signs wrongly loses by that attempt, whatever becomes of the node; else whoever had the
    node last, and failed it by its own doing.

    Args:
        heard: what its agent has answered.
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
    if lost == 0:
        return None
    if lost != locked * SLASH_BPS // 10_000:
        return f"failure cost {lost} of {locked}"
    if number != node["attempt"] or node["status"] not in (NodeStatus.FAILED, NodeStatus.TIMEOUT):
        return f"failure cost {lost}, but this did not end the node"
    code = node["error"]["code"]
    if code == NodeErrorCode.VERIFICATION_REJECTED:
        is_due = is_rejected
    elif code == NodeErrorCode.AGENT_TIMEOUT:
        is_due = True  # who is silent has said nothing
    else:
        is_due = any(isinstance(r, Failure) and r.code == code and not r.is_spared for r in heard)
    return None if is_due and code in GUILTY else f"{lost} lost without a cause"
