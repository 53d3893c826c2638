"""What planning a batch looks at: collected from its commands beforehand.

Plain sets of keys; `cache_loading.py` reads what is behind them. money.md (Commands and keys).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.writer.state_cache import stake_address, stake_locked_address


@dataclass(slots=True)
class ReadSet:
    """Addresses, escrows, agents, keys, members.

    `agent_dids`, `trusted`: agents; the latter must not be revoked.
    `owned_dids`: whose money in all is bounded, by what the deposits of the batch,
    `deposited_micro` in all, may make of it.
    `registered`: agents and who registers them, whose active agents are counted.
    `claimed_dids`: DIDs of registered cards, which another caller may have as its own.
    `new_keys`: agents with keys that they shall get, none of which may have been theirs.
    `credential_keys`: API keys by which commands were given. `signed_dids`: whose signatures were.
    `member_ids`: of members that may be GONE.

    `ending` are the workflows whose payers may get something back: their wallets are needed too.
    `published`: payers and the UTC midnights before their publishes; `quota_dids`: whose quotas may
    change.
    `share_dids`: agents whose stake is put up or taken back: the shares of its depositors.
    `staked`, `rounds`: (workflow, node) pairs whose attempt may have stake locked, whose auction
    may be open; `closing`: those of them whose round closes, which frees what its bids have locked.
    `kept_bids`: (workflow, node) pairs whose bids that no round counts are counted.
    `trigger_ids`: triggers that change, or whose runs are decided.
    """

    addresses: set[str] = field(default_factory=set)
    workflow_ids: set[str] = field(default_factory=set)
    ending: set[str] = field(default_factory=set)
    trusted: set[str] = field(default_factory=set)
    owned_dids: set[str] = field(default_factory=set)
    deposited_micro: int = 0
    agent_dids: set[str] = field(default_factory=set)
    registered: set[tuple[str, str]] = field(default_factory=set)
    claimed_dids: set[str] = field(default_factory=set)
    new_keys: set[tuple[str, str]] = field(default_factory=set)
    credential_keys: set[str] = field(default_factory=set)
    signed_dids: set[str] = field(default_factory=set)
    member_ids: set[str] = field(default_factory=set)
    published: set[tuple[str, int]] = field(default_factory=set)
    quota_dids: set[str] = field(default_factory=set)
    share_dids: set[str] = field(default_factory=set)
    staked: set[tuple[str, str]] = field(default_factory=set)
    rounds: set[tuple[str, str]] = field(default_factory=set)
    kept_bids: set[tuple[str, str]] = field(default_factory=set)
    trigger_ids: set[str] = field(default_factory=set)

    def add_stake(self, agent_did: str) -> None:
        """Add the two accounts of an agent's stake."""
        self.addresses |= {stake_address(agent_did), stake_locked_address(agent_did)}
