"""What a workflow machine hears, and what it says must be stored.

Two closed unions: `Event` (past tense: something happened) and `Record` (past tense: what is now
true and must be committed); what must be done is in `actions.py`. Nothing here acts.
Reference: features.md (States).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from core.errors import NodeErrorCode
from core.market.auction import Bid
from core.market.pricing import TokenPrice
from core.market.reputation import PROMISED_MS
from core.message import Message
from core.workflow.transitions import NodeStatus, WorkflowStatus


class BlobRef(Message, frozen=True):
    """The reference of a large result: its hash and size instead of its bytes.

    The process that receives the result creates the reference; the process that needs the bytes
    resolves it. It is never parsed from an agent's JSON, so no result can refer to another payer's
    bytes. `hash`: `sha256:` + hex over the result's canonical form; `size`: bytes of that form.
    """

    hash: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return the reference as it is stored and shown."""
        return {"$blob": self.hash, "size": self.size}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> BlobRef:
        """Read a reference that `to_json` wrote."""
        return cls(str(stored["$blob"]), int(stored["size"]))


class Verdict(StrEnum):
    """What a failed attempt means for the node (retry by HTTP status)."""

    RETRYABLE = "retryable"
    FINAL_FOR_AGENT = "final_for_agent"
    FINAL = "final"
    LOST = "lost"  # the dispatching process died: next attempt at once, not the agent's fault


class Failure(Message, frozen=True):
    """Why an attempt, or a selection, failed.

    `is_spared`: the agent did no wrong, although the code alone would say so: it was too busy, or
    its connection broke. It loses neither stake nor reputation.
    `is_unstaked`: nothing was sent, nothing is locked: other work had the agent's stake.
    `is_forged`: the result bore a signature that is not the agent's, which costs it as fraud does.
    `is_passing`: of a selection: an agent that may take the node is away and may come back.
    `is_refusal`: the agent refused the inputs; it is spared where it has no schema for them.
    `is_declined`: the agent is full or refuses connections: it has not taken the work.
    """

    code: NodeErrorCode
    message: str
    verdict: Verdict = Verdict.RETRYABLE
    details: str | None = None  # the closed list of AGENT_UNAVAILABLE
    target_agent_id: str | None = None
    retry_after_ms: int = 0
    is_spared: bool = False
    is_unstaked: bool = False
    is_forged: bool = False
    is_passing: bool = False
    is_refusal: bool = False
    is_declined: bool = False


# -- events ----------------------------------------------------------------------------------------


class WorkflowAccepted(Message, frozen=True):
    """The workflow begins: its roots become ready."""

    at_ms: int


class AgentSelected(Message, frozen=True):
    """Answers `SelectAgent` or `SelectBidder`: this agent takes the node at this price.

    `selection_json`: who was weighed and why this one won, None where there was no choice.
    `token_price`: it is paid by tokens; then `price_micro` says nothing. `stake_micro`: what of its
    stake is locked while it is at work. `closed`: the auction that it has won.
    `promised_ms`: the time in which it promises its result. `is_own`: it has the payer's owner.
    """

    node: str
    agent_did: str
    price_micro: int
    at_ms: int
    selection_json: str | None = None
    token_price: TokenPrice | None = None
    stake_micro: int = 0
    closed: AuctionClosed | None = None
    promised_ms: int = PROMISED_MS
    is_own: bool = False


class AgentNotSelected(Message, frozen=True):
    """Answers `SelectAgent`, `SelectBidder` or `SelectVerifier`: no agent can take it."""

    node: str
    failure: Failure
    at_ms: int
    closed: AuctionClosed | None = None


class BidsHeard(Message, frozen=True):
    """The round's time is over; these are all the bids that came in it, as the ledger says."""

    node: str
    round: int
    bids: tuple[Bid, ...]
    at_ms: int


class WorkStarted(Message, frozen=True):
    """The request was handed to the socket; the node's clock runs from here."""

    node: str
    attempt: int
    at_ms: int


class AttemptAccepted(Message, frozen=True):
    """The agent works on and will hand its result in; its time runs from `started_ms`.

    `verify_attempt`: of the verification that was accepted, 0 when it is the attempt itself.
    `input_hash`: over what it was sent, kept for the day of its result.
    """

    node: str
    attempt: int
    started_ms: int
    at_ms: int
    verify_attempt: int = 0
    input_hash: str | None = None


class SettledBy(Message, frozen=True):
    """Who ends an attempt instead of its agent, and what the payer names for it, micro-credits.

    `named_micro` None: the payer names nothing. `right`, `reason`: the single right that permitted
    it; "" for a usual key's.
    """

    did: str
    named_micro: int | None
    right: str = ""
    reason: str = ""


class AttemptSucceeded(Message, frozen=True):
    """The agent replied with a result.

    The result is in `result_json`, in canonical form, or behind `result_ref` when it is large.
    Hashes are `sha256:` + hex over the JCS forms. `settled_by`: who has ended the attempt of an
    agent that had accepted it; None: an agent's reply. `signature`: `ed25519:` + base64 over the
    result, valid by the agent's key `signed_key` (base64); None: not signed, or not checked.
    `charged_micro`: what a peer charged for it, the fee here included, which is what is paid; the
    peer has had the result verified where the node requires that. None: the reply of an agent.
    """

    node: str
    attempt: int
    result_json: str | None
    input_hash: str | None
    output_hash: str
    started_ms: int
    at_ms: int
    metrics: dict[str, Any] = field(default_factory=dict)
    result_ref: BlobRef | None = None
    settled_by: SettledBy | None = None
    signature: str | None = None
    signed_key: str | None = None
    charged_micro: int | None = None


class AttemptFailed(Message, frozen=True):
    """The agent refused, failed, timed out, or could not be reached.

    `charged_micro`: what a peer charged for a result that is refused, as of `AttemptSucceeded`: a
    verification there rejected it, or its agent is revoked.
    """

    node: str
    attempt: int
    failure: Failure
    started_ms: int
    at_ms: int
    charged_micro: int = 0


class VerifierSelected(Message, frozen=True):
    """Answers `SelectVerifier`. `is_trusted`: its rejection may cost the agent stake."""

    node: str
    agent_did: str
    price_micro: int
    at_ms: int
    is_trusted: bool = False


class VerificationFinished(Message, frozen=True):
    """The verifier judged (approved true or false) or could not (failure set).

    `approved` None: its result says neither, which rejects at no cost for the agent.
    """

    node: str
    attempt: int
    approved: bool | None
    failure: Failure | None
    started_ms: int
    at_ms: int
    verify_attempt: int | None = None  # None: the one that is open


def failed_event(
    node: str,
    attempt: int,
    failure: Failure,
    *,
    verify_attempt: int,
    started_ms: int,
    at_ms: int,
) -> AttemptFailed | VerificationFinished:
    """Return the event of a failed attempt, or of its failed verification.

    Args:
        verify_attempt: of the verification, 0 when it is the attempt itself.
    """
    if verify_attempt:
        return VerificationFinished(
            node, attempt, False, failure, started_ms, at_ms, verify_attempt
        )
    return AttemptFailed(node, attempt, failure, started_ms, at_ms)


class RetryDue(Message, frozen=True):
    """The delay before the node's next attempt, or its verifier's, is over.

    To a node that waits for an agent it says that one may be there, or at the end of that wait that
    the wait is over.
    """

    node: str
    at_ms: int


class AgentRevoked(Message, frozen=True):
    """An agent is revoked: what it has here, to do or to judge, is taken from it."""

    agent_did: str
    at_ms: int


class RuntimeExceeded(Message, frozen=True):
    """`maxRuntimeMs` is over."""

    at_ms: int


class CancelRequested(Message, frozen=True):
    """A caller with the right to do so cancels the workflow."""

    reason: str
    details: str
    by_did: str
    at_ms: int


Event = (
    WorkflowAccepted
    | AgentSelected
    | AgentNotSelected
    | BidsHeard
    | WorkStarted
    | AttemptAccepted
    | AttemptSucceeded
    | AttemptFailed
    | VerifierSelected
    | VerificationFinished
    | RetryDue
    | AgentRevoked
    | RuntimeExceeded
    | CancelRequested
)


# -- records: what must be committed ---------------------------------------------------------------


class NodeColumns(Struct):
    """A node's row, whole: also its open attempt, from which recovery continues.

    `attempt` counts from 1 (0: never dispatched); `agents_tried` are those who failed finally.
    `verifier_did` is set while a verification is open. `verify_attempt` counts the node's
    verifications over all its attempts, `verify_retries_used` the failed ones of the open result.
    `cost_micro` is everything paid for the node so far, its verifiers included. A result is in
    `result_json`, or behind `result_ref` when it is large. A stored `running` without a result is
    an attempt that the agent has accepted: its result is awaited until `deadline_ms`, its inputs
    had `input_hash`. `selection_json` says why the open attempt's agent was chosen. `price_json` is
    set when that agent is paid by tokens: `price_micro` is its limit until its result is there.
    `stake_micro` is what is locked with the open attempt. `auction_round` is the last that was
    opened; live bids are taken until `auction_closes_ms`, None when there is nothing to wait for.
    `key_version`: by which the tokens of the open attempt and its verifications are derived, 0
    before the first attempt. `promised_ms`: the time in which the open attempt's agent promised its
    result. `is_own`: that agent has the payer's owner. `counts_as`: how the node's end counts for
    the reputation of its last agent (`rules/node_ends.py`); None: it does not, or has not ended.
    """

    node: str
    status: NodeStatus
    attempt: int = 0
    agent_did: str | None = None
    price_micro: int = 0
    dispatched_ms: int | None = None
    deadline_ms: int | None = None
    retry_at_ms: int | None = None
    retries_used: int = 0
    agents_tried: tuple[str, ...] = ()
    verifier_did: str | None = None
    verify_attempt: int = 0
    verifier_price_micro: int = 0
    verify_retries_used: int = 0
    verifiers_tried: tuple[str, ...] = ()
    result_json: str | None = None
    error: dict[str, Any] | None = None
    started_ms: int | None = None
    completed_ms: int | None = None
    cost_micro: int = 0
    metrics: dict[str, Any] | None = None
    result_ref: BlobRef | None = None
    input_hash: str | None = None
    selection_json: str | None = None
    price_json: str | None = None
    stake_micro: int = 0
    promised_ms: int = PROMISED_MS
    is_own: bool = False
    counts_as: str | None = None
    auction_round: int = 0
    auction_closes_ms: int | None = None
    key_version: int = 0


class NodeChanged(NodeColumns, Message, frozen=True):  # type: ignore[misc]  # columns change
    """A node's row after a step, which holds at most one `NodeChanged` per node."""


class AttemptFinished(Message, frozen=True):
    """One line of the append-only history of attempts, unique by (node, kind, attempt).

    `kind`: primary, or verify (then `attempt` is the `verify_attempt`). `outcome`: success, error,
    timeout, lost, discarded (cancelled); of a verification also rejected. A primary line says that
    the agent replied with a result; whether it was accepted and paid, the node's row says.
    `queued_ms`: when the attempt was opened. `signature`: over its result, valid by the agent's key
    `signed_key`.
    """

    node: str
    attempt: int
    agent_did: str
    outcome: str
    started_ms: int
    completed_ms: int
    kind: str = "primary"
    input_hash: str | None = None
    output_hash: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    queued_ms: int | None = None
    signature: str | None = None
    signed_key: str | None = None


class NodePaid(Message, frozen=True):
    """Gross payment due to an agent out of the escrow, micro-credits, more than 0.

    `line`, paid once, is the node's name; for its verifiers the name + `#verify`, then + `#verify2`
    and so on for further verifications after a rejection (money.md, Verifiers).
    """

    line: str
    agent_did: str
    gross_micro: int


class StakeLocked(Message, frozen=True):
    """The attempt puts this much of its agent's stake at risk, micro-credits, more than 0."""

    node: str
    attempt: int
    agent_did: str
    micro: int


class StakeFreed(Message, frozen=True):
    """The attempt has ended, and with it the lock; how much of it is lost, the ledger decides.

    `is_forged`: it ended with a signature that is not the agent's. `failure_code`: the agent is
    given up for the node because of this failure of its own; None when it is not to blame.
    """

    node: str
    attempt: int
    agent_did: str
    micro: int
    is_forged: bool = False
    failure_code: NodeErrorCode | None = None


class AuctionOpened(Message, frozen=True):
    """A round of a node's auction begins; its terms are those of every bid in it."""

    node: str
    round: int
    capability_id: str
    reserve_micro: int
    stake_bps: int
    opened_ms: int
    closes_ms: int


class AuctionClosed(Message, frozen=True):
    """A round is over. `winner_did` None: no agent has won; `is_cancelled`: none was to win.

    `bids`: the lowest that were weighed, standing ones as they were then; `excluded`: by agent, why
    its bid took no part; `unlisted`: how many bids there were besides.
    """

    node: str
    round: int
    winner_did: str | None
    price_micro: int | None
    bids: tuple[Bid, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    is_cancelled: bool = False
    unlisted: int = 0


class WorkflowChanged(Message, frozen=True):
    """The workflow's status after a step; a terminal one also releases the escrow."""

    status: WorkflowStatus
    at_ms: int
    error: dict[str, Any] | None = None
    reason: str | None = None
    by_did: str | None = None
    details: str | None = None


Record = (
    NodeChanged
    | AttemptFinished
    | NodePaid
    | StakeLocked
    | StakeFreed
    | AuctionOpened
    | AuctionClosed
    | WorkflowChanged
)
