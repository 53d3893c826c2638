"""What the one writer remembers between batches: accounts, escrows, members, shards, agents.

A cache of committed rows and nothing more: it is dropped whenever the outcome of a batch is not a
commit, and filled again by reading. Correct because there is one writer (the fence proves it).
money.md (Rules that the database enforces, Commands and keys).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from core.errors import QuarantineCode, ServiceError
from core.market.auction import (
    LIVE_BIDS_MAX,
    Bid,
    best_held,
    displaced_bid,
    highest_held,
    owner_of,
)
from core.market.sharing.quota import QuotaLimits
from core.records.statuses import OwnershipProof
from core.shards.lease_messages import HeldShard, MemberState
from core.shards.shard import SHARDS

WORLD_ADDRESS: Final = "world"
FEE_ADDRESS: Final = "fee"

# Entries kept at most; beyond it the older half is forgotten and read again when needed.
CACHED_MAX: Final = 200_000


@dataclass(slots=True)
class Account:
    """An account as of the last planned command; `balance` in micro-credits."""

    id: int
    kind: str
    balance: int


@dataclass(slots=True)
class Escrow:
    """A workflow's escrow: what is left is its account's balance.

    `is_halted`: a step was refused; what comes next has to be decided from the rows.
    `quarantine`: a step was refused for an unforeseen reason; nothing but an end comes next.
    """

    account: Account
    payer_did: str
    amount: int
    fee_bps: int
    published_ms: int
    is_released: bool = False
    is_halted: bool = False
    quarantine: QuarantineCode | None = None


@dataclass(slots=True)
class KnownAgent:
    """Who claimed an agent's DID, how often its row was stored, and whether it takes work.

    `token_revision`: heartbeat tokens name it; it moves when a deregistered agent comes back, and
    when an unproven claim yields. `inherited_from_did`: the owner for whose bound it counts, who
    has named the first heir until an heir registers a card; None: its owner of now. `public_key`:
    the current one, None for none; `key_number`: how many keys it has had, `key_from_ms`: since
    when it has this one. `proven_by`: None for an unproven claim. `card_counter`: the highest that
    a card was signed for. `card_number`: how many cards its lineage has, `card_hash` of the stored
    one, `lineage_hash` of its place in it. `is_trusted`: an administrator has registered it.
    `capability_ids`: what its card offers.
    """

    owner_did: str
    revision: int
    token_revision: int = 1
    is_active: bool = True
    public_key: str | None = None
    key_number: int = 1
    key_from_ms: int = 0
    inherited_from_did: str | None = None
    card_counter: int = 0
    card_number: int = 0
    card_hash: str | None = None
    lineage_hash: str | None = None
    is_trusted: bool = False
    proven_by: OwnershipProof | None = None
    capability_ids: tuple[str, ...] = ()

    @property
    def counted_did(self) -> str:
        """The owner for whose bound of agents it counts: an heir's is not filled."""
        return self.inherited_from_did or self.owner_did


@dataclass(frozen=True, slots=True)
class KnownMember:
    """A member of the cluster that is not GONE. Of those at one address the newest has replaced the
    others: `joined_ms` differs there."""

    machine: str
    address: str
    version: str
    state: MemberState
    joined_ms: int


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A live API key: whose it is, which key it was made with, on how many it stands.

    `expires_ms` None: never. `hash`: by which it is known now; `previous_hash`: also by this one
    until `previous_ends_ms`. `is_admin`: it opens also when its owner is revoked.
    """

    owner_did: str
    parent_id: str | None
    depth: int
    expires_ms: int | None
    hash: bytes
    previous_hash: bytes | None = None
    previous_ends_ms: int | None = None
    is_admin: bool = False

    def opens(self, key_hash: bytes, at_ms: int) -> bool:
        """Say whether a secret, by its SHA-256, is this key's at a time, Unix milliseconds."""
        is_overlap = self.previous_ends_ms is not None and at_ms < self.previous_ends_ms
        return key_hash == self.hash or (is_overlap and key_hash == self.previous_hash)


@dataclass(frozen=True, slots=True)
class Revocation:
    """Who has revoked an agent, and until when; None: for good."""

    by_did: str
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class KnownTrigger:
    """A trigger's row without its name, template and configuration (`ledger/tables`)."""

    id: str
    owner_did: str
    kind: str
    version: int
    max_runs: int | None
    daily_budget_micro: int | None
    status: str
    reason: str | None
    due_ms: int | None
    taken_ms: int | None = None
    runs: int = 0
    refusals: int = 0
    day_ms: int = 0
    day_micro: int = 0
    signed_key: str | None = None
    key_id: str | None = None
    expires_ms: int | None = None
    audit_id: int = 0


@dataclass(slots=True)
class Usage:
    """What a payer uses of its quota, kept for payers that have one.

    `running`: workflows whose escrow is held. `days`: by UTC midnight, how many were published that
    day, and what they hold or have cost in the end, micro-credits.
    """

    running: int
    days: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class OpenRound:
    """A round of an auction that has not been closed; `bids` are the live ones it holds, by agent.

    `is_over`: its owner has been sent the bids, so no more come, whatever the clock says.
    `stake_bps`: the stake that it requires, basis points of a bid.
    """

    number: int
    reserve_micro: int
    closes_ms: int
    bids: dict[str, Bid] = field(default_factory=dict)
    is_over: bool = False
    stake_bps: int = 0
    # Of a full round; a caller may have bids refused as often as its rate allows.
    _highest: Bid | None = None
    _best: dict[str, Bid] = field(default_factory=dict)

    def highest(self) -> Bid | None:
        """Return the bid whose place is the next to be taken, None while there is a free one."""
        if self._highest is None and len(self.bids) >= LIVE_BIDS_MAX:
            bids = tuple(self.bids.values())
            self._best = best_held(bids)
            self._highest = highest_held(bids, self._best)
        return self._highest

    def displaced_by(self, bid: Bid) -> Bid | ServiceError | None:
        """Return the bid whose place a new one takes, as `displaced_bid`."""
        highest = self.highest()
        if highest is None:
            return None
        is_spare = self._best[owner_of(highest)] is not highest
        return displaced_bid(bid, highest, own=self._best.get(owner_of(bid)), is_spare=is_spare)

    def hold(self, bid: Bid, displaced: Bid | None) -> None:
        """Take a bid, in the place of another."""
        if displaced is not None:
            del self.bids[displaced.agent_did]
        self.bids[bid.agent_did] = bid
        self._highest = None


@dataclass(slots=True)
class Head:
    """The counters and the chain's head after the last planned command; `latest_ms`: its time."""

    epoch: int
    entry_seq: int
    audit_seq: int
    hash: bytes
    account_seq: int
    latest_ms: int = 0


class Leases(Protocol):
    """Which members live; it outlives the state cache, and planning only asks it."""

    def is_live(self, member: str) -> bool:
        """Say whether the shards of a member may not be taken."""

    def may_take(self, member: str) -> bool:
        """Say to the plan of a Take whether they may be; no renewal is acknowledged then until the
        outcome is known."""


@dataclass(slots=True)
class StateCache:
    """Everything planning may look at. Absent addresses and DIDs map to None once looked up."""

    head: Head
    leases: Leases
    # All that are not GONE, and by shard who holds it; whole. `map_version`: the audit entry of
    # their newest change.
    members: dict[str, KnownMember] = field(default_factory=dict)
    shards: list[HeldShard] = field(default_factory=lambda: [HeldShard("", 0)] * SHARDS)
    map_version: int = 0
    accounts: dict[str, Account | None] = field(default_factory=dict)
    escrows: dict[str, Escrow | None] = field(default_factory=dict)
    agents: dict[str, KnownAgent | None] = field(default_factory=dict)
    # By agent: its revocation, None when it has none that was not taken back.
    revoked: dict[str, Revocation | None] = field(default_factory=dict)
    # By owner: wallet, held escrows and stakes together, micro-credits; of the batch at hand.
    owned: dict[str, int] = field(default_factory=dict)
    quotas: dict[str, QuotaLimits | None] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    # By agent, then depositor: what of the stake is whose, as last settled (stake_shares.py).
    shares: dict[str, dict[str, int]] = field(default_factory=dict)
    # By workflow and node: the attempt whose agent has stake locked, and how much, micro-credits.
    staked: dict[tuple[str, str], tuple[int, int] | None] = field(default_factory=dict)
    # By workflow and node: the round that takes bids, None when no round does.
    rounds: dict[tuple[str, str], OpenRound | None] = field(default_factory=dict)
    # By workflow and node: how many bids it has that no round counts.
    kept_bids: dict[tuple[str, str], int] = field(default_factory=dict)
    triggers: dict[str, KnownTrigger | None] = field(default_factory=dict)
    # By payer and rate policy: a minute, and how many nodes were published in it.
    rates: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    # Of the batch at hand only: agents with keys that are not theirs any more, API keys that
    # commands were given by, signers that own API keys, how many active agents an owner has, which
    # claimed DIDs have keys or agents of their own, (workflow, node) pairs that are already paid or
    # have succeeded, and members that are GONE.
    former_keys: set[tuple[str, str]] = field(default_factory=set)
    live_keys: dict[str, KnownKey] = field(default_factory=dict)
    key_owners: set[str] = field(default_factory=set)
    agent_counts: dict[str, int] = field(default_factory=dict)
    callers: set[str] = field(default_factory=set)
    settled: set[tuple[str, str]] = field(default_factory=set)
    gone_members: set[str] = field(default_factory=set)
    # The audit record of each payer's newest invoice, and of the newest correction of reputations,
    # since this cache was read, `read_audit_id`: what was added up before is stale.
    invoiced: dict[str, int] = field(default_factory=dict)
    corrected_audit_id: int = 0
    read_audit_id: int = 0

    def __post_init__(self) -> None:
        self.read_audit_id = self.head.audit_seq

    def is_revoked(self, did: str, at_ms: int) -> bool:
        """Say whether an agent is revoked at a time, milliseconds."""
        found = self.revoked.get(did)
        return found is not None and (found.expires_ms is None or at_ms < found.expires_ms)

    def balance(self, address: str) -> int:
        """Return what an account holds, micro-credits; 0 where it was never opened."""
        account = self.accounts.get(address)
        return 0 if account is None else account.balance

    def end_batch(self) -> None:
        """Forget what was read for one batch and keep the caches within their bound."""
        for found in (
            self.former_keys, self.live_keys, self.key_owners, self.agent_counts, self.callers,
            self.settled, self.gone_members, self.owned,
        ):  # fmt: skip
            found.clear()
        if len(self.invoiced) > CACHED_MAX:
            self.invoiced.clear()
            self.read_audit_id = self.head.audit_seq
        cached: tuple[dict[Any, Any], ...] = (
            self.escrows, self.revoked, self.agents, self.quotas, self.usage, self.shares,
            self.staked, self.rounds, self.kept_bids, self.triggers, self.rates,
        )  # fmt: skip
        for part in cached:
            _shrink(part)
        if len(self.accounts) > CACHED_MAX:
            kept = {name: self.accounts[name] for name in (WORLD_ADDRESS, FEE_ADDRESS)}
            _shrink(self.accounts)
            self.accounts.update(kept)


def _shrink(cache: dict[Any, Any]) -> None:
    if len(cache) > CACHED_MAX:
        for name in list(cache)[: CACHED_MAX // 2]:
            del cache[name]


def wallet_address(did: str) -> str:
    """Return the address of an owner's or agent's wallet."""
    return "wallet:" + did


def escrow_address(workflow_id: str) -> str:
    """Return the address of a workflow's escrow account."""
    return "escrow:" + workflow_id


def stake_address(did: str) -> str:
    """Return the address of the stake that an agent can take back."""
    return "stake:" + did


def stake_locked_address(did: str) -> str:
    """Return the address of the stake that an agent's running work may cost it."""
    return "stake_locked:" + did
