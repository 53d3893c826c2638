"""The actions that a workflow machine requests, and the decision of one step.

`Action` is a closed union, named in the imperative. The runner answers the selections (`Select…`)
before the commit, and performs all other actions after the commit.
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
    """Select an agent before the commit. The answer is `AgentSelected` or `AgentNotSelected`.

    `price_max_micro`: the price limit, micro-credits. `exclude`: agents that must not be selected.
    `attempt`: the number of the next attempt. This number and `workflow_id` decide whether a new
    agent gets a trial. `price`: the registered price of the capability at publish.
    `is_by_token`: agents that are paid by tokens are candidates, too. `versions`: only agents that
    offer a published version in this range are candidates; "" for any version.
    `verifier_capability_id`: only agents that accept a verifier with this capability are
    candidates; "" for all agents. `timeout_ms`: the node's timeout; None for no limit. An agent
    whose promised time is longer is a candidate only if it is the target. `deadline_ms`: the
    workflow's deadline; None if not known. `region`, `is_federated`, `peer_verifier_id`: as in
    `CompiledNode`. If `region` is None, the node must run in this deployment.
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
    """Award a round of an auction before the commit. The answers are those of `SelectAgent`.

    `bids`: the live bids; standing bids are in agent cards. `exclude`: agents that failed in
    earlier rounds. `holder_did`: the winner of an earlier round. It is selected again at
    `holder_price_micro`, without an award. None: the round is awarded. `holder_bid_micro`,
    `holder_promised_ms`: the bid and the promised time of this winner. `verifier_capability_id`,
    `timeout_ms`: as in `SelectAgent`. `is_frozen`: `bids` are all bids that take part. They
    come from the last round, standing bids included. No bid is read from agent cards.
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
    """Read the round's live bids from the ledger at `due_ms` and deliver `BidsReceived`."""

    node: str
    round: int
    due_ms: int


class SelectVerifier(Message, frozen=True):
    """Select a verifier before the commit. The answer is `VerifierSelected` or `AgentNotSelected`.

    The owner of the verifier must be neither the owner of the agent `primary_did` nor the payer's
    owner. `is_verifier_chosen`: the payer has chosen the verifiers' capability. In this case, the
    verifier must be one that the card of `primary_did` accepts.
    """

    node: str
    capability_id: str
    primary_did: str
    exclude: tuple[str, ...]
    price_max_micro: int
    is_verifier_chosen: bool = False


class DispatchNode(Message, frozen=True):
    """Send the attempt to the agent, or the attempt's result to a verifier.

    `verify_attempt`: the number of the verification; 0 for the attempt itself.
    """

    node: str
    attempt: int
    agent_did: str
    timeout_ms: int
    verify_attempt: int = 0


class ScheduleRetry(Message, frozen=True):
    """Deliver `RetryDue` at `due_ms`."""

    node: str
    due_ms: int


class AwaitAgent(Message, frozen=True):
    """Deliver `RetryDue` when an agent may be available again, at `until_ms` at the latest."""

    node: str
    capability_id: str
    until_ms: int


class AwaitResult(Message, frozen=True):
    """Deliver a timeout of this accepted attempt or verification at `due_ms`.

    `promised_ms`: the time in which the attempt's agent promised its result.
    """

    node: str
    attempt: int
    verify_attempt: int
    started_ms: int
    due_ms: int
    promised_ms: int = PROMISED_MS


class AbortDispatch(Message, frozen=True):
    """Stop waiting for this attempt and send the agent a cancellation notice (best effort)."""

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
    """The decision of one step: first commit `records`, then perform `actions`."""

    records: list[Record] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
