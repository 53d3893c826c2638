"""What the runner needs of the world, as protocols: a clock, a ledger, a directory, a dispatcher.

Callbacks instead of awaitables, so that the same runner runs under asyncio and under the seeded
simulation's virtual clock. No implementation here. design.md sections 3 and 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from msgspec import field

from core.market.pricing import Price, TokenPrice
from core.market.standing_bid import Offer
from core.message import Message
from core.trust.derived_keys import KEY_VERSION
from core.workflow.actions import SelectAgent, SelectBidder, SelectVerifier
from core.workflow.dag import CompiledNode
from core.workflow.events import AgentNotSelected, AgentSelected, Event, Failure, VerifierSelected
from ledger.commands import Command, Outcome


class Timer(Protocol):
    """A callback that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time in milliseconds and callbacks at a time."""

    def now_ms(self) -> int: ...

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer: ...


class LedgerPort(Protocol):
    """Commands into the ledger; those of one payer are committed in the order of their submission.

    None is refused, because each follows from a step that a machine has made. `has_room`: whether
    a payer may begin new work, with so many commands waiting. `payer`: the workflow's, "" for what
    has none.
    """

    def has_room(self, payer: str) -> bool: ...

    def submit(
        self, command: Command, done: Callable[[Outcome], None], payer: str = ""
    ) -> None: ...


class LargeInputs(Message, frozen=True):
    """What inputs are made of, some of it by reference; `unverified`: what a verifier judges."""

    node: CompiledNode
    results: dict[str, Any]
    unverified: Any = None


class DispatchOrder(Message, frozen=True):
    """One request to one agent, complete: whoever holds it can send it.

    `is_verification`: the reply is a judgement of `attempt`'s result, not a result.
    `secret`: the agent's signing secret, or None for unsigned dispatches. `payer_did`: whose turn
    it takes while it waits for its agent. `public_key`: what a signature over the result is judged
    by, None where the agent has registered no key.
    `large`: set when results have to be loaded before `inputs` and `parents` can be made.
    `key_version`: by which the attempt's token is derived, as stored with it.
    `is_cut_short`: `timeout_ms` is what its workflow has left, less than the node's own time-out.
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
    inputs: dict[str, Any]
    parents: dict[str, Any]
    timeout_ms: int
    is_verification: bool = False
    verify_attempt: int = 0
    payer_did: str = ""
    large: LargeInputs | None = None
    public_key: str | None = None
    key_version: int = KEY_VERSION
    is_cut_short: bool = False


class Contact(Enum):
    """What the end of an order tells about reaching its agent.

    `UNKNOWN`: nothing, since it was given up or had too little time. `TIMED_OUT`: no reply within
    the time that its payer allowed. `UNREACHABLE`: no connection, or one that broke.
    """

    UNKNOWN = auto()
    REACHED = auto()
    TIMED_OUT = auto()
    UNREACHABLE = auto()


class DispatchPort(Protocol):
    """Requests out; every order is answered by exactly one event unless it was aborted.

    An abort tells the agent, unless the order never left; also after `AttemptAccepted`. An accepted
    order keeps its place at its agent until it is aborted or `ended`; `hold` takes the place of one
    that was accepted before this process began. Orders are known by identity.
    `waiting`: how many orders have not left yet, `waiting_of`: how many of them of one payer.
    """

    @property
    def waiting(self) -> int: ...

    def waiting_of(self, payer: str) -> int: ...

    def send(self, order: DispatchOrder, receive: Callable[[str, Event], None]) -> None: ...

    def hold(self, order: DispatchOrder) -> None: ...

    def ended(self, order: DispatchOrder) -> None: ...

    def abort(self, order: DispatchOrder, reason: str) -> None: ...


class AgentEntry(Message, frozen=True):
    """What dispatching needs of an agent card.

    `prices`: by capability id; None where the card names none. `standing`: its standing bids.
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


@dataclass(frozen=True, slots=True)
class Asked:
    """What a node of a capability may be asked to pay, as far as is known now.

    `registered`: the capability's own price. `dearest`: the dearest fixed price of an agent, that
    price included; None when nobody offers it. `by_token`: a price by tokens that somebody asks.
    """

    registered: Price | None = None
    dearest_micro: int | None = None
    by_token: TokenPrice | None = None


class DirectoryPort(Protocol):
    """The agents known to this process and their health as seen from here.

    `payer_did`: the workflow's, since an agent may be left alone for one payer only.
    """

    def select(
        self, action: SelectAgent, at_ms: int, *, payer_did: str
    ) -> AgentSelected | AgentNotSelected: ...

    def select_bidder(
        self, action: SelectBidder, at_ms: int, *, payer_did: str
    ) -> AgentSelected | AgentNotSelected: ...

    def select_verifier(
        self, action: SelectVerifier, at_ms: int, *, payer_did: str
    ) -> VerifierSelected | AgentNotSelected: ...

    def entry(self, did: str) -> AgentEntry | None: ...

    def is_revoked(self, did: str, at_ms: int) -> bool: ...

    def asked(self, capability_id: str, target_agent_id: str | None) -> Asked: ...

    def foresee(
        self, action: SelectAgent, at_ms: int, *, payer_did: str
    ) -> tuple[list[str], Failure | None]: ...
