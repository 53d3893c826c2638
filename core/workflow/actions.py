"""What a workflow machine says must be done, and one step's whole decision.

`Action` is a closed union, in the imperative: what the runner performs after the commit, its
selections excepted, which it answers before. Nothing here acts.
Reference: features.md (States).
"""

from __future__ import annotations

from msgspec import Struct, field

from core.market.auction import Bid
from core.market.pricing import Price
from core.market.reputation import PROMISED_MS
from core.message import Message
from core.workflow.events import Record


class SelectAgent(Message, frozen=True):
    """Choose an agent now (before the commit); answer `AgentSelected` or `AgentNotSelected`.

    `price_max_micro`: dearer agents are no candidates. `exclude`: who must not be taken.
    `attempt`: the number that it will have; with the workflow's id it decides about trials.
    `price`: the capability's price at publish. `is_by_token`: agents paid by tokens may be taken.
    `versions`: only agents that offer a published version of this range; "": whatever they offer.
    `verifier_capability_id`: only agents that accept a verifier which offers it; "": all agents.
    `timeout_ms`: the node's; who promises a later result is no candidate, but for a target. None:
    however late. `deadline_ms`: the workflow's; None: not known.
    `region`, `is_federated`, `peer_verifier_id`: the node's; a region of None: it stays in this
    deployment.
    """

    node: str
    capability_id: str
    target_agent_id: str | None
    allow_fallback: bool
    exclude: tuple[str, ...]
    price_max_micro: int
    workflow_id: str = ""
    attempt: int = 1
    price: Price | None = None
    is_by_token: bool = False
    versions: str = ""
    verifier_capability_id: str = ""
    timeout_ms: int | None = None
    region: str | None = ""
    is_federated: bool = False
    deadline_ms: int | None = None
    peer_verifier_id: str = ""


class SelectBidder(Message, frozen=True):
    """Award a round of an auction (before the commit); answer as to `SelectAgent`.

    `bids`: its live ones; standing ones are in cards. `exclude`: who has failed in earlier rounds.
    `holder_did`: who has won before and is only asked to go on, at `holder_price_micro`: nothing is
    awarded then. `holder_bid_micro`, `holder_promised_ms`: what it has bid and promised.
    `verifier_capability_id`, `timeout_ms`: as of `SelectAgent`.
    `is_frozen`: only `bids` count: those of the last round.
    """

    node: str
    capability_id: str
    round: int
    reserve_micro: int
    stake_bps: int
    closes_ms: int
    bids: tuple[Bid, ...] = ()
    exclude: tuple[str, ...] = ()
    holder_did: str | None = None
    holder_price_micro: int = 0
    holder_bid_micro: int = 0
    holder_promised_ms: int = PROMISED_MS
    verifier_capability_id: str = ""
    is_frozen: bool = False
    timeout_ms: int | None = None


class CloseAuction(Message, frozen=True):
    """Ask the ledger for the round's live bids at that time; deliver `BidsHeard`."""

    node: str
    round: int
    due_ms: int


class SelectVerifier(Message, frozen=True):
    """As `SelectAgent`, for a verifier of another owner than `primary_did`'s and the payer's.

    `is_verifier_chosen`: by the payer, so that `primary_did`'s card says who may verify.
    """

    node: str
    capability_id: str
    primary_did: str
    exclude: tuple[str, ...]
    price_max_micro: int
    is_verifier_chosen: bool = False


class DispatchNode(Message, frozen=True):
    """Send the attempt to the agent, or its result to a verifier.

    `verify_attempt`: the number of the verification, 0 for the attempt itself.
    """

    node: str
    attempt: int
    agent_did: str
    timeout_ms: int
    verify_attempt: int = 0


class ScheduleRetry(Message, frozen=True):
    """Deliver `RetryDue` at that time."""

    node: str
    due_ms: int


class AwaitAgent(Message, frozen=True):
    """Deliver `RetryDue` when an agent for it may be back, at `until_ms` at the latest."""

    node: str
    capability_id: str
    until_ms: int


class AwaitResult(Message, frozen=True):
    """Deliver a time-out of this accepted attempt, or verification, at that time.

    `promised_ms`: the time in which the attempt's agent promised its result.
    """

    node: str
    attempt: int
    verify_attempt: int
    started_ms: int
    due_ms: int
    promised_ms: int = PROMISED_MS


class AbortDispatch(Message, frozen=True):
    """Stop waiting for this attempt; tell the agent with a cancellation notice (best effort)."""

    node: str
    attempt: int
    agent_did: str
    reason: str


Action = (
    SelectAgent
    | SelectBidder
    | CloseAuction
    | SelectVerifier
    | DispatchNode
    | ScheduleRetry
    | AwaitAgent
    | AwaitResult
    | AbortDispatch
)


class Decision(Struct):
    """What one step decided: first commit `records`, then perform `actions`."""

    records: list[Record] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
