"""The keys of the rows that planning a batch reads, collected from its commands beforehand.

`cache_loading.py` loads the rows. Reference: money.md (Commands and keys).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ReadSet:
    """Keys of the rows that the state cache must have before a batch is planned.

    `wallets`, `stakes`: DIDs whose wallets, or whose two stake accounts, are read.
    `workflow_ids`: of escrows.
    `ending`: workflows whose payers may get money back; the payers' wallets are loaded too.
    `agent_dids`, `trusted`: agents; of the latter, revocations are loaded too.
    `owned_dids`: owners whose total credits the deposits of the batch may raise above the bound.
    `deposited_micro`: the sum of these deposits, micro-credits.
    `registered`: (agent, registering owner) pairs, to count the active agents of owners.
    `claimed_dids`: DIDs of registered cards that may be the own DID of another caller.
    `new_keys`: (agent, new key) pairs; the new key must not be a former key of the agent.
    `credential_keys`: ids of the API keys that authorized commands.
    `signed_dids`: DIDs whose signatures authorized commands.
    `member_ids`: members that may be GONE.
    `published`: (payer, UTC midnight before the publish in Unix milliseconds) pairs.
    `quota_dids`: payers whose quotas change.
    `share_dids`: agents whose shares of depositors are loaded.
    `staked`: (workflow, node) pairs whose attempt may have locked stake.
    `rounds`: (workflow, node) pairs whose auction may be open.
    `kept_bids`: (workflow, node) pairs whose bids outside of any round are counted.
    `trigger_ids`: triggers that change, or whose runs are decided.
    """

    wallets: set[str] = field(default_factory=set)
    stakes: set[str] = field(default_factory=set)
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
