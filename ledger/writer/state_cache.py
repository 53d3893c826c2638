"""The writer's cache of committed rows between batches: accounts, escrows, members, shards, agents.

When a batch is not committed, the writer drops the cache and reads rows again. The fence guarantees
that only one process writes, so the cache cannot be stale. Reference: money.md (Rules that the
database enforces, Commands and keys).
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

# Maximum entries per part of the cache. Above this number the older half is dropped; a dropped row
# is read again when it is needed.
CACHED_MAX: Final = 200_000


@dataclass(slots=True)
class Account:
    """An account as the newest planned command leaves it. `balance`: micro-credits."""

    id: int
    kind: str
    balance: int


@dataclass(slots=True)
class Escrow:
    """A workflow's escrow. The balance of `account` is the part of `amount` that was not spent yet,
    micro-credits.

    `is_halted`: a step was refused. The next step must be decided from the stored rows.
    `quarantine`: a step was refused for an unforeseen reason. Only the workflow's end may follow.
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
    """The ledger's view of an agent, active or not.

    `owner_did`: who registered the agent. `revision`: how often its row was stored.
    `token_revision`: part of the agent's heartbeat tokens. It rises when earlier tokens must become
    invalid: a deregistered agent registers again, an unproven claim yields, or the agent is
    inherited or recovered.
    `inherited_from_did`: the owner towards whose maximum of agents an inherited agent counts. It is
    a previous owner until an heir registers a card and has room. None: `owner_did`.
    `public_key`: the current key, None if the agent has none. `key_number`: how many keys it has
    had. `key_from_ms`: when it got the current key.
    `card_counter`: the highest counter of a signed card. `card_number`: how many cards the lineage
    has. `card_hash`: hash of the stored card. `lineage_hash`: hash of the lineage up to the stored
    card.
    `is_trusted`: an administrator has registered the agent. `proven_by`: None for an unproven
    claim. `capability_ids`: the capabilities that its card offers.
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
        """The owner towards whose maximum of agents this agent counts."""
        return self.inherited_from_did or self.owner_did


@dataclass(frozen=True, slots=True)
class KnownMember:
    """A member of the cluster that is not GONE. If several members have the same address, the one
    with the highest `joined_ms` has replaced the others."""

    machine: str
    address: str
    version: str
    state: MemberState
    joined_ms: int


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A live API key: its owner, its parent key, and how many ancestors it has (`depth`).

    `expires_ms` None: it never expires. `hash`: SHA-256 of the current secret. `previous_hash`:
    SHA-256 of the previous secret, which is valid until `previous_ends_ms`. `is_admin`: it is valid
    even when its owner is revoked.
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
        """Say whether a secret is valid for this key at a time.

        Args:
            key_hash: SHA-256 of the secret.
            at_ms: Unix milliseconds.
        """
        is_overlap = self.previous_ends_ms is not None and at_ms < self.previous_ends_ms
        return key_hash == self.hash or (is_overlap and key_hash == self.previous_hash)


@dataclass(frozen=True, slots=True)
class Revocation:
    """Who has revoked an agent, and until when (Unix milliseconds; None: for ever)."""

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
    """How much of its quota a payer uses. It is loaded for payers that have or get a quota.

    `running`: number of workflows whose escrow is held. `days`: by UTC midnight, (the number of
    workflows published that day, the sum of their holds or final costs in micro-credits).
    """

    running: int
    days: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class OpenRound:
    """A round of an auction that has not been closed; `bids` has its live bids by agent.

    `is_over`: the owner process has received the bids, so the round accepts no more bids, even
    before `closes_ms`. `stake_bps`: the required stake in basis points of a bid.
    """

    number: int
    reserve_micro: int
    closes_ms: int
    bids: dict[str, Bid] = field(default_factory=dict)
    is_over: bool = False
    stake_bps: int = 0
    # Cached for a full round, because a caller may send many bids that the round refuses.
    _highest: Bid | None = None
    _best: dict[str, Bid] = field(default_factory=dict)

    def highest(self) -> Bid | None:
        """Return the bid that the next bid would replace; None while the round is not full."""
        if self._highest is None and len(self.bids) >= LIVE_BIDS_MAX:
            bids = tuple(self.bids.values())
            self._best = best_held(bids)
            self._highest = highest_held(bids, self._best)
        return self._highest

    def displaced_by(self, bid: Bid) -> Bid | ServiceError | None:
        """Return the bid that a new bid replaces; None or an error as from `displaced_bid`."""
        highest = self.highest()
        if highest is None:
            return None
        is_spare = self._best[owner_of(highest)] is not highest
        return displaced_bid(bid, highest, own=self._best.get(owner_of(bid)), is_spare=is_spare)

    def hold(self, bid: Bid, displaced: Bid | None) -> None:
        """Store a bid; remove the bid that it replaces, if any."""
        if displaced is not None:
            del self.bids[displaced.agent_did]
        self.bids[bid.agent_did] = bid
        self._highest = None


@dataclass(slots=True)
class Head:
    """The counters and the newest hash of the chain, as the newest planned command leaves them.

    `latest_ms`: the time of the newest committed batch.
    """

    epoch: int
    entry_seq: int
    audit_seq: int
    hash: bytes
    account_seq: int
    latest_ms: int = 0


class Leases(Protocol):
    """Says which members are live. It outlives the state cache; planning only queries it."""

    def is_live(self, member: str) -> bool:
        """Say whether a member is live, so that its shards may not be taken."""

    def may_take(self, member: str) -> bool:
        """Say to the plan of `TakeShards` whether the shards of a member may be taken.

        If so, no renewal of the member is acknowledged until the outcome of that command is known.
        """


@dataclass(slots=True)
class StateCache:
    """The committed rows that planning may read. A key that was looked up and has no row maps to
    None."""

    head: Head
    leases: Leases
    # All members that are not GONE, and the holder of each shard. Both are always complete.
    # `map_version`: the id of the audit entry that changed them last.
    members: dict[str, KnownMember] = field(default_factory=dict)
    shards: list[HeldShard] = field(default_factory=lambda: [HeldShard("", 0)] * SHARDS)
    map_version: int = 0
    accounts: dict[str, Account | None] = field(default_factory=dict)
    escrows: dict[str, Escrow | None] = field(default_factory=dict)
    agents: dict[str, KnownAgent | None] = field(default_factory=dict)
    # By agent: its revocation, None if it is not revoked.
    revoked: dict[str, Revocation | None] = field(default_factory=dict)
    # By owner: the sum of wallet, held escrows and stakes, micro-credits. Only for one batch.
    owned: dict[str, int] = field(default_factory=dict)
    quotas: dict[str, QuotaLimits | None] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    # By agent, then depositor: the depositor's share of the stake at the last settlement.
    shares: dict[str, dict[str, int]] = field(default_factory=dict)
    # By workflow and node: the attempt whose agent has locked stake, and the micro-credits locked.
    staked: dict[tuple[str, str], tuple[int, int] | None] = field(default_factory=dict)
    # By workflow and node: the round that takes bids, None if there is none.
    rounds: dict[tuple[str, str], OpenRound | None] = field(default_factory=dict)
    # By workflow and node: the number of bids outside of any round.
    kept_bids: dict[tuple[str, str], int] = field(default_factory=dict)
    triggers: dict[str, KnownTrigger | None] = field(default_factory=dict)
    # By payer and rate policy: a minute, and the number of nodes published in it.
    rates: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    # Only for one batch. `former_keys`: (agent, key) pairs. `live_keys`: the API keys that
    # authorized commands. `key_owners`: signers that own API keys. `agent_counts`: active agents by
    # owner. `callers`: claimed DIDs that own an API key or an agent. `settled`: (workflow, node or
    # payment line) pairs that have succeeded or were paid. `gone_members`: members that are GONE.
    former_keys: set[tuple[str, str]] = field(default_factory=set)
    live_keys: dict[str, KnownKey] = field(default_factory=dict)
    key_owners: set[str] = field(default_factory=set)
    agent_counts: dict[str, int] = field(default_factory=dict)
    callers: set[str] = field(default_factory=set)
    settled: set[tuple[str, str]] = field(default_factory=set)
    gone_members: set[str] = field(default_factory=set)
    # A command with sums that were read before one of these audit entries is stale. `invoiced`: by
    # payer, the newest invoice after `read_audit_id`. `corrected_audit_id`: the newest correction
    # of reputations. `read_audit_id`: the newest audit entry when this cache was read or `invoiced`
    # cleared.
    invoiced: dict[str, int] = field(default_factory=dict)
    corrected_audit_id: int = 0
    read_audit_id: int = 0

    def __post_init__(self) -> None:
        self.read_audit_id = self.head.audit_seq

    def is_revoked(self, did: str, at_ms: int) -> bool:
        """Say whether an agent is revoked at a time, Unix milliseconds."""
        found = self.revoked.get(did)
        return found is not None and (found.expires_ms is None or at_ms < found.expires_ms)

    def balance(self, address: str) -> int:
        """Return the balance of an account, micro-credits; 0 if it was never opened."""
        account = self.accounts.get(address)
        return 0 if account is None else account.balance

    def end_batch(self) -> None:
        """Drop the rows that were loaded for one batch, and shrink parts of the cache that are too
        large."""
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
    """Return the address of the unlocked part of an agent's stake."""
    return "stake:" + did


def stake_locked_address(did: str) -> str:
    """Return the address of the part of an agent's stake that its running work locks."""
    return "stake_locked:" + did
