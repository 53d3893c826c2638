"""The ports of the runner as protocols (clock, ledger, dispatcher), and the values they pass.

The ports use callbacks, not awaitables, so that the same runner runs under asyncio and under the
virtual clock of the simulation. This module contains no implementation.
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
    """A scheduled callback."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time in Unix milliseconds, and callbacks scheduled at such times."""

    def now_ms(self) -> int: ...

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer: ...


class LedgerPort(Protocol):
    """Submits commands to the ledger, which commits each payer's commands in submission order.

    `submit` refuses no command, because each command follows from a step that a machine has taken.
    `has_room` says whether the command queue has room for new work of a payer. `payer`: the payer
    of the command's workflow, "" for a command without a payer.
    """

    def has_room(self, payer: str) -> bool: ...

    def submit(
        self, command: Command, done: Callable[[Outcome], None], payer: str = ""
    ) -> None: ...


class InputSources(Message, frozen=True):
    """The sources from which a node's inputs are built.

    `results`: the results of other nodes, as JSON texts or as references to stored results.
    `unverified`: the result that a verifier judges. Then `node` has no parents, because their
    results are not sent.
    """

    node: CompiledNode
    results: dict[str, str | BlobRef]
    unverified: str | BlobRef | None = None


# Stands for the name of a schema that only the agent's card contains, so the card must be read. No
# real schema has this name.
UNREAD_SCHEMA: Final = "unread"


class DispatchOrder(Message, frozen=True):
    """One complete request to one agent; any process of the cluster can send it.

    `is_verification`: the agent is a verifier; its reply is a verdict on the result of `attempt`.
    `secret`: the agent's signing secret, None for unsigned dispatches. `payer_did`: the payer of
    the workflow. `public_key`: verifies the signature of the result, None if the agent has
    registered no key. `sources`: the sources of the inputs. None: the order was sent before a
    restore. This process can hold, judge and cancel such an order, but cannot send it.
    `key_version`: the stored version of the key from which the attempt's token is derived.
    `is_cut_short`: `timeout_ms` is the workflow's remaining time, not the node's longer timeout.
    `capability_version`: the version of the capability that the agent's card offers, or "".
    `ends_ms`: the deadline of the workflow, Unix milliseconds. The order is useless later. 0: the
    order is useless `timeout_ms` after its start.
    `input_schema`, `output_schema`: the names of the agent's schemas; "" if it has none,
    `UNREAD_SCHEMA` if its card must be read first.
    `rejected`: the number of the node's verifications before this attempt.
    `promised_ms`: the time in which the agent promises its reply. The agent is not to blame if it
    misses a shorter timeout.
    `traceparent`: the header of the workflow's publish, None if the publish had no such header.
    `peer`: the terms of an order to a peer; `agent_did` is then the clearing account of the peer.
    None: an order to an agent.
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
        """Return the order without the sources of its inputs, which may be large."""
        return replace(self, sources=None)


class Contact(Enum):
    """What the end of an order shows about the connection to its agent.

    `UNKNOWN`: nothing, because the order was not sent, was cancelled, or had too little time.
    `REACHED`: the agent is reachable. `UNANSWERED`: there was no reply within the payer's timeout,
    or the connection broke. `UNREACHABLE`: no connection could be opened.
    """

    UNKNOWN = auto()
    REACHED = auto()
    UNANSWERED = auto()
    UNREACHABLE = auto()


class DispatchPort(Protocol):
    """Sends orders. Each order gets exactly one final event, unless the caller ends it first.

    Orders are compared by identity. `waiting`: the number of queued orders. `waiting_of`: the
    number of a payer's queued orders. `abort` ends an order, and sends the agent a cancel notice if
    the order was sent, even after `AttemptAccepted`. `cancel` ends an order without a notice.
    `give_up` makes a peer cancel its order; the final event of the order follows. An accepted order
    occupies the capacity of its agent until `abort`, `cancel` or `release`. `hold` occupies the
    capacity for an accepted order of a restored workflow.
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
    """An agent in the directory: the part of its card that selection and dispatch read.

    `order`: the number of the agent by its time of registration; it decides between equal agents.
    `prices`: by capability id, and also by the id of a version if the card names a version; None if
    the card has no price. `standing`: the standing bids by capability id. `versions`: the version
    that the card names, by capability id. `input_schemas`, `output_schemas`: the names of the
    schemas, by the ids of capabilities that have one.
    `former_key`: the public key before the current one, valid until `former_until_ms`.
    `is_trusted`: the agent is a trusted verifier (docs/glossary.md).
    `accepted_verifiers`: the verifiers that the agent accepts if the payer chooses the verifier
    capability: "trusted", "any", or DIDs. `promised_ms`: the time in which the agent promises its
    result, by the ids of capabilities for which the card names one. `private_subnet`, `region`:
    from the card, or "".
    `peer`: the peer to which this clearing account belongs; None for an agent. `fee_bps`: the fee
    of this deployment on what the peer charges, basis points.
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
        """Return the promised time of a capability, milliseconds, or the default."""
        return self.promised_ms.get(capability_id, PROMISED_MS)

    def valid_keys(self, at_ms: int) -> tuple[str, ...]:
        """Return the public keys that are valid at a time, the current key first."""
        keys = () if self.public_key is None else (self.public_key,)
        if self.former_key is not None and at_ms < self.former_until_ms:
            return (*keys, self.former_key)
        return keys


@dataclass(frozen=True, slots=True)
class AskingPrices:
    """The current prices of a capability.

    `registered`: the registered price. `dearest_micro`: the highest fixed price of an agent; None
    if no agent has a fixed price. `by_token`: the token price of any one agent; None if no agent is
    paid by tokens. `cheapest_micro`: the lowest fixed price. `positive_micro`: the lowest fixed
    price above 0. These two are None if there is no such price, or if the node has a target. If a
    registered price applies, the agents' prices may be None.
    """

    registered: Price | None = None
    dearest_micro: int | None = None
    by_token: TokenPrice | None = None
    cheapest_micro: int | None = None
    positive_micro: int | None = None
