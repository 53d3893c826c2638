"""The runner's ports, as protocols: a clock, a ledger, a dispatcher; and what travels to agents.

The ports use callbacks, not awaitables, so that the same runner runs under asyncio and under the
simulation's virtual clock. No implementation here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from msgspec import field
from msgspec.structs import replace

from core.market.pricing import Price, TokenPrice
from core.market.reputation import PROMISED_MS
from core.market.standing_bid import Offer
from core.message import Message
from core.peers.routing import KnownPeer
from core.records.bounds import TRUSTED_VERIFIERS
from core.trust.deployment_keys import FIRST_VERSION
from core.workflow.dag import CompiledNode
from core.workflow.events import BlobRef, Event
from core.workflow.peer_orders import OrderTerms
from ledger.commands import Command, Outcome


class Timer(Protocol):
    """A callback that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time in milliseconds and callbacks at a time."""

    def now_ms(self) -> int: ...

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer: ...


class LedgerPort(Protocol):
    """Submits commands to the ledger; one payer's commands are committed in their order.

    The port refuses no command, because each follows from a step that a machine has decided.
    `has_room`: whether a payer may start new work beside the commands that are queued. `payer`: the
    workflow's payer, "" for commands without one.
    """

    def has_room(self, payer: str) -> bool: ...

    def submit(
        self, command: Command, done: Callable[[Outcome], None], payer: str = ""
    ) -> None: ...


class InputSources(Message, frozen=True):
    """What a node's inputs are made of: texts of results, or references of stored ones.

    `unverified`: the result to be verified; then the node has no parents, which are not sent.
    """

    node: CompiledNode
    results: dict[str, str | BlobRef]
    unverified: str | BlobRef | None = None


# No schema has this name: its text is not kept, so the agent's card is read for it.
UNREAD_SCHEMA: Final = "unread"


class DispatchOrder(Message, frozen=True):
    """One complete request to one agent; any process of the cluster can send it.

    `is_verification`: the reply is a verdict on `attempt`'s result, not a result.
    `secret`: the agent's signing secret, None for unsigned dispatches. `payer_did`: the payer in
    whose turn the order leaves its agent's queue. `public_key`: verifies the result's signature,
    None where the agent has registered no key.
    `sources`: what its inputs are made of; None when another process has sent it, so that it can be
    held, judged and cancelled alone.
    `key_version`: the version of the key that the attempt's token is derived from, as stored.
    `is_cut_short`: the workflow's remaining runtime limits `timeout_ms`, not the node's timeout.
    `capability_version`: which version of it the agent's card offers, "" where it says none.
    `ends_ms`: when the workflow ends at the latest, after which nothing of the order is of use; 0:
    with `timeout_ms`.
    `input_schema`, `output_schema`: the names of its agent's schemas, "" where it has none,
    `UNREAD_SCHEMA` where its card is to be read first.
    `rejected`: how many verifications the node had before this attempt.
    `promised_ms`: the time in which its agent promises its reply: a shorter `timeout_ms` says
    nothing of the agent.
    `traceparent`: the one that the workflow's publish brought, None without one.
    `peer`: it goes to a peer, whose clearing account is `agent_did`; None: to an agent.
    """

    workflow_id: str
    task_id: str
    node: str
    attempt: int
    capability_id: str
    agent_did: str
    url: str
    cancel_url: str
    secret: str | None
    timeout_ms: int
    sources: InputSources | None = None
    is_verification: bool = False
    verify_attempt: int = 0
    payer_did: str = ""
    public_key: str | None = None
    key_version: int = FIRST_VERSION
    is_cut_short: bool = False
    ends_ms: int = 0
    input_schema: str = ""
    output_schema: str = ""
    capability_version: str = ""
    rejected: int = 0
    promised_ms: int = PROMISED_MS
    traceparent: str | None = None
    peer: OrderTerms | None = None

    def without_inputs(self) -> DispatchOrder:
        """Return the order without what its inputs are made of, which may be large."""
        return replace(self, sources=None)


class Contact(Enum):
    """What the end of an order tells about reaching its agent.

    `UNKNOWN`: nothing, since it was not sent, was given up, or had too little time. `UNANSWERED`:
    no reply within the time that its payer allowed, or the connection broke. `UNREACHABLE`: no
    connection.
    """

    UNKNOWN = auto()
    REACHED = auto()
    UNANSWERED = auto()
    UNREACHABLE = auto()


class DispatchPort(Protocol):
    """Sends orders; each order gets exactly one final event unless it is aborted.

    `abort` notifies the agent of every order that was sent, also after `AttemptAccepted`. An
    accepted order occupies its agent's capacity until `abort` or `release`; `hold` occupies it for
    an order that was accepted before this process started. Orders are compared by identity.
    `waiting`: how many orders are queued and not sent, `waiting_of`: how many of them of one payer.
    `cancel` stops waiting for the reply of an order, and does not tell the agent. `give_up` has the
    peer of an order cancel it; the order's final event follows.
    """

    @property
    def waiting(self) -> int: ...

    def waiting_of(self, payer: str) -> int: ...

    def send(self, order: DispatchOrder, receive: Callable[[str, Event], None]) -> None: ...

    def hold(self, order: DispatchOrder) -> None: ...

    def release(self, order: DispatchOrder) -> None: ...

    def abort(self, order: DispatchOrder, reason: str) -> None: ...

    def cancel(self, order: DispatchOrder) -> object: ...

    def give_up(self, order: DispatchOrder) -> None: ...


class AgentEntry(Message, frozen=True):
    """The part of an agent card that dispatching reads.

    `prices`: by capability id, and by its version's id where the card says one; None where it has
    no price. `standing`: its standing bids. `versions`: by capability id, what the card says.
    `input_schemas`, `output_schemas`: the names of the schemas of those capabilities that have one.
    `is_trusted`: it may verify without being chosen. `accepted_verifiers`: whose judgement it
    accepts where the payer chooses: "trusted", "any", or the DIDs of verifiers.
    `promised_ms`: in which time it promises its result, of those capabilities whose card says it.
    `private_subnet`: the private subnet that its card names, `region`: the region; "" for none.
    `peer`: the peer that has this clearing account; None: the entry is an agent. `fee_bps`: the fee
    here on what the peer charges.
    """

    did: str
    owner_did: str
    url: str
    cancel_url: str
    prices: dict[str, Price | None]
    secret: str | None
    max_concurrency: int
    order: int
    standing: dict[str, Offer] = field(default_factory=dict)
    public_key: str | None = None
    former_key: str | None = None
    former_until_ms: int = 0
    input_schemas: dict[str, str] = field(default_factory=dict)
    output_schemas: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    is_trusted: bool = False
    accepted_verifiers: str | tuple[str, ...] = TRUSTED_VERIFIERS
    promised_ms: dict[str, int] = field(default_factory=dict)
    private_subnet: str = ""
    region: str = ""
    peer: KnownPeer | None = None
    fee_bps: int = 0

    def find_promise_ms(self, capability_id: str) -> int:
        """Return the time in which the agent's card promises its result, milliseconds."""
        return self.promised_ms.get(capability_id, PROMISED_MS)

    def valid_keys(self, at_ms: int) -> tuple[str, ...]:
        """Return the keys whose signatures count at a time, the current one first."""
        keys = () if self.public_key is None else (self.public_key,)
        if self.former_key is not None and at_ms < self.former_until_ms:
            return (*keys, self.former_key)
        return keys


@dataclass(frozen=True, slots=True)
class AskingPrices:
    """The prices that a capability's agents ask now.

    `registered`: the capability's registered price. `dearest_micro`: the highest fixed price of an
    agent, None when no agent offers the capability. `by_token`: one agent's price per token.
    `cheapest_micro`, `positive_micro`: the lowest fixed price, and the lowest above 0; None where
    there is none, and for a target.
    """

    registered: Price | None = None
    dearest_micro: int | None = None
    by_token: TokenPrice | None = None
    cheapest_micro: int | None = None
    positive_micro: int | None = None
