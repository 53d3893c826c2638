"""The events that a workflow machine takes, and the records that it returns to be stored.

Two closed unions, both named in the past tense: an `Event` has happened outside the machine. A
`Record` is a change that the machine has decided and that must be committed. `actions.py` has the
actions that must be performed.
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
    """A reference to a large result: the hash and the size stand for the bytes.

    The process that receives the result creates the reference. The process that needs the bytes
    resolves it. A reference is never parsed from an agent's JSON, so no result can refer to another
    payer's bytes. `hash`: `sha256:` + hex over the result's canonical form. `size`: the length of
    this form, bytes.
    """

    hash: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in which the reference is stored and shown."""
        return {"$blob": self.hash, "size": self.size}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> BlobRef:
        """Read a reference that `to_json` wrote."""
        return cls(str(stored["$blob"]), int(stored["size"]))


class Verdict(StrEnum):
    """What follows a failed attempt: a retry, another agent, or the end of the node."""

    RETRYABLE = "retryable"
    FINAL_FOR_AGENT = "final_for_agent"
    FINAL = "final"
    LOST = "lost"  # the dispatching process ended: no fault of the agent; retry at once


class Failure(Message, frozen=True):
    """Why an attempt, or a selection, failed.

    `details`: for AGENT_UNAVAILABLE, a value of the closed list of reasons.
    `is_spared`: the agent is not to blame, although the code alone suggests it: for example, it was
    too busy or its connection broke. The agent loses neither stake nor reputation.
    `is_stake_in_use`: nothing was sent and no stake is locked, because other work locks the agent's
    stake.
    `is_forged`: the signature of the result is not the agent's. The agent is slashed as for fraud.
    `is_temporary`: the selection failed because of an unavailable agent that may come back soon.
    `is_refusal`: the agent refused the inputs.
    `is_declined`: the agent is full or refuses connections, so it has not taken the work.
    """

    code: NodeErrorCode
    message: str
    verdict: Verdict = Verdict.RETRYABLE
    details: str | None = None
    target_agent_id: str | None = None
    retry_after_ms: int = 0
    is_spared: bool = False
    is_stake_in_use: bool = False
    is_forged: bool = False
    is_temporary: bool = False
    is_refusal: bool = False
    is_declined: bool = False


# -- events ----------------------------------------------------------------------------------------


class WorkflowAccepted(Message, frozen=True):
    """The workflow begins, and its roots become ready."""

    at_ms: int


class AgentSelected(Message, frozen=True):
    """Answers `SelectAgent` or `SelectBidder`: this agent takes the node at this price.

    `selection_json`: the candidates and the reasons of the choice; None if there was no choice.
    `token_price`: the price per token; None for the fixed price `price_micro`. `stake_micro`: the
    part of the agent's stake that is locked during the attempt. `closed`: the auction round that
    the agent has won; None without a round. `promised_ms`: the time in which the agent promises
    its result. `is_own`: whether the agent and the payer have the same owner.
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
    """Answers `SelectAgent`, `SelectBidder` or `SelectVerifier`: no agent can take the node."""

    node: str
    failure: Failure
    at_ms: int
    closed: AuctionClosed | None = None


class BidsReceived(Message, frozen=True):
    """The window of an auction round is over; `bids` are all live bids of the round."""

    node: str
    round: int
    bids: tuple[Bid, ...]
    at_ms: int


class WorkStarted(Message, frozen=True):
    """The request was written to the socket; the attempt's timeout starts at `at_ms`."""

    node: str
    attempt: int
    at_ms: int


class AttemptAccepted(Message, frozen=True):
    """The agent replied 202 and will send its result later.

    `started_ms`: when the timeout of the attempt or verification starts. `verify_attempt`: the
    number of the accepted verification; 0 for the attempt itself. `input_hash`: the hash of the
    inputs that were sent. It is needed when the result arrives.
    """

    node: str
    attempt: int
    started_ms: int
    at_ms: int
    verify_attempt: int = 0
    input_hash: str | None = None


class AttemptSucceeded(Message, frozen=True):
    """The agent replied with a result.

    `result_json` is the result in canonical form; for a large result it is None and `result_ref`
    refers to the result. Hashes are `sha256:` + hex over the JCS forms. `is_settled`: the payer
    ended the accepted attempt, not its agent. `named_micro`: the payment that the payer names,
    micro-credits; None if it names none. `signature`: `ed25519:` + base64 over the result, valid
    under the agent's key `signed_key` (base64); None if the result is not signed or the signature
    was not checked. `charged_micro`: the amount that a peer charged plus the fee of this
    deployment, which is the payment; None for an agent of this deployment. A peer has already had
    the result verified if the node requires a verification.
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
    is_settled: bool = False
    named_micro: int | None = None
    signature: str | None = None
    signed_key: str | None = None
    charged_micro: int | None = None


class AttemptFailed(Message, frozen=True):
    """The agent refused, failed, timed out, or could not be reached.

    `charged_micro`: the payment, as in `AttemptSucceeded`, for a result of a peer that is not
    accepted. A verification at the peer has rejected the result, or the result's agent is revoked.
    """

    node: str
    attempt: int
    failure: Failure
    started_ms: int
    at_ms: int
    charged_micro: int = 0


class VerifierSelected(Message, frozen=True):
    """Answers `SelectVerifier`. `is_trusted`: a rejection may cost the agent stake."""

    node: str
    agent_did: str
    price_micro: int
    at_ms: int
    is_trusted: bool = False


class VerificationFinished(Message, frozen=True):
    """The verifier gave a verdict (`approved`), or the verification failed (`failure`).

    `approved` None: the verifier's result contains no verdict. The node's result is then rejected,
    but the agent is not blamed. `verify_attempt` None: the open verification.
    """

    node: str
    attempt: int
    approved: bool | None
    failure: Failure | None
    started_ms: int
    at_ms: int
    verify_attempt: int | None = None


class RetryDue(Message, frozen=True):
    """The delay before the node's next attempt or verification is over.

    For a node that waits for an agent, this event means that an agent may be available again, or
    that the wait is over.
    """

    node: str
    at_ms: int


class AgentRevoked(Message, frozen=True):
    """An agent is revoked: its open attempts and verifications in this workflow end."""

    agent_did: str
    at_ms: int


class RuntimeExceeded(Message, frozen=True):
    """The workflow has run longer than `maxRuntimeMs`."""

    at_ms: int


class CancelRequested(Message, frozen=True):
    """An authorized caller cancels the workflow."""

    reason: str
    details: str
    by_did: str
    at_ms: int


Event = (
    WorkflowAccepted
    | AgentSelected
    | AgentNotSelected
    | BidsReceived
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
    """All columns of a node's row. After a restart, the node continues from these columns.

    `attempt` counts from 1; 0 means that the node was never dispatched. `agents_tried`: the agents
    that are given up for the node. `verifier_did` is set while a verification is open.
    `verify_attempt` counts the verifications of all attempts of the node. `verify_retries_used`
    counts the retries of the verification of the open result. `cost_micro`: the sum of all payments
    for the node so far, its verifiers included. `result_json` is the result; for a large result it
    is None and `result_ref` refers to the result. A stored `running` row without a result is an
    attempt that the agent has accepted: the owner waits for the result until `deadline_ms`, and
    `input_hash` is the hash of the inputs. `selection_json`: why the agent of the open attempt was
    chosen. `price_json`: the agent's price per token; None for a fixed price. If it is set,
    `price_micro` is the price limit until the result arrives. `stake_micro`: the stake that the
    open attempt locks. `auction_round`: the number of the last round that was opened.
    `auction_closes_ms`: until when the open round takes live bids; None if no round takes bids.
    `key_version`: the version of the key that derives the tokens of the open attempt and its
    verifications; 0 before the first attempt. `promised_ms`: the time in which the agent of the
    open attempt promised its result. `is_own`: whether this agent and the payer have the same
    owner. `counts_as`: how the node's end counts for the reputation of its last agent
    (`rules/node_ends.py`); None if it does not count or the node has not ended.
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
    """A node's row after a step. One step has at most one `NodeChanged` per node."""


class AttemptFinished(Message, frozen=True):
    """One line of the append-only history of attempts, unique by (node, kind, attempt).

    `kind`: `primary` for an attempt; `verify` for a verification, whose `verify_attempt` is stored
    in `attempt`. `outcome`: success, error, timeout, lost or discarded; a verification may also
    have the outcome rejected. A `primary` line with the outcome success says only that the agent
    replied with a result. The node's row says whether the result was accepted and paid.
    `queued_ms`: when the attempt was opened. `signature`: the agent's signature over the result,
    valid under the agent's key `signed_key`.
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
    """A payment from escrow to an agent, before the fee. Micro-credits, more than 0.

    `line` identifies the payment; each line is paid once. The line of the node's agent is the
    node's name. The lines of verifiers are the name + `#verify`, then `#verify2` and so on
    (money.md, Verifiers).
    """

    line: str
    agent_did: str
    gross_micro: int


class StakeLocked(Message, frozen=True):
    """An attempt locks this part of its agent's stake, micro-credits, more than 0."""

    node: str
    attempt: int
    agent_did: str
    micro: int


class StakeUnlocked(Message, frozen=True):
    """An attempt has ended and unlocks its stake. The ledger decides how much is slashed.

    `is_forged`: the signature of the attempt's result is not the agent's. `failure_code`: the code
    of the agent's failure, if the agent is to blame and is given up for the node; otherwise None.
    """

    node: str
    attempt: int
    agent_did: str
    micro: int
    is_forged: bool = False
    failure_code: NodeErrorCode | None = None


class AuctionOpened(Message, frozen=True):
    """A round of a node's auction begins; every bid in the round is subject to these terms."""

    node: str
    round: int
    capability_id: str
    reserve_micro: int
    stake_bps: int
    opened_ms: int
    closes_ms: int


class AuctionClosed(Message, frozen=True):
    """A round of an auction is over.

    `winner_did` None: no agent has won. `is_cancelled`: the round ended without an award, because
    the node ended. `bids`: some of the bids, standing bids included. The lowest eligible bids come
    first, excluded bids last. `excluded`: pairs of an agent and the reason why its bid is excluded.
    `unlisted`: the number of bids that are not in `bids`.
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
    """The workflow's status after a step. The commit of a terminal status releases the escrow."""

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
    | StakeUnlocked
    | AuctionOpened
    | AuctionClosed
    | WorkflowChanged
)
