"""Loads into the state cache the rows that planning a batch needs and that the cache lacks.

Each statement reads a set of keys. A usual batch finds all its rows in the cache and needs no
statement. A writer reads the head, all members and all shards when it starts and after each
rollback of a batch, because every batch needs them. Reference: money.md (Commands and keys).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

import psycopg

from core.errors import ErrorCode, QuarantineCode
from core.market.sharing.quota import QuotaLimits
from core.money import MICRO_MAX
from core.records.statuses import OwnershipProof
from ledger.commands import Outcome, OutcomeStatus
from ledger.connections.connect import columns_of, fetch
from ledger.errors import LedgerFenced
from ledger.features.auctions import COUNT_KEPT, find_bidders, load_rounds
from ledger.features.keys import read_keys
from ledger.features.member_leases import load_cluster, load_gone_members
from ledger.features.quotas import QUOTA_LIMITS, load_usage
from ledger.tables.trigger_tables import TRIGGER_STATE
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    FEE_ADDRESS,
    WORLD_ADDRESS,
    Account,
    Escrow,
    Head,
    KnownAgent,
    KnownTrigger,
    Leases,
    Revocation,
    StateCache,
    stake_address,
    stake_locked_address,
    wallet_address,
)

Connection = psycopg.AsyncConnection[Any]
Pair = tuple[str, str]


async def read_state_cache(connection: Connection, epoch: int, leases: Leases) -> StateCache:
    """Return a new state cache with the committed head, members and shards.

    Args:
        epoch: the epoch of this writer.
        leases: says which members are live.

    Raises:
        LedgerFenced: another writer has taken over since this epoch.
    """
    (row,) = await fetch(
        connection,
        "SELECT entry_seq, audit_seq, hash, (SELECT max(id) FROM callboard.account), epoch,"
        " (SELECT created_ms FROM callboard.audit ORDER BY id DESC LIMIT 1)"
        " FROM callboard.head",
    )
    if row[4] != epoch:
        raise LedgerFenced(f"ledger writer fenced off: epoch {epoch}, the ledger is at {row[4]}")
    head = Head(
        epoch=epoch,
        entry_seq=row[0],
        audit_seq=row[1],
        hash=row[2],
        account_seq=row[3],
        latest_ms=row[5] or 0,
    )
    cache = StateCache(head, leases)
    addresses = [WORLD_ADDRESS, FEE_ADDRESS]
    for address, *fields in await fetch(connection, _ACCOUNTS, (addresses,)):
        cache.accounts[address] = Account(*fields)
    await load_cluster(connection, cache)
    return cache


# By part of the cache: the key of each row, then what the part stores of the row.
_ESCROWS: Final = """
    SELECT e.workflow_id::text, a.address, a.id, a.balance, e.payer_did, e.amount, e.fee_bps,
        w.created_ms, e.status = 'released', w.is_halted, w.quarantine_code
    FROM callboard.escrow e JOIN callboard.account a ON a.id = e.account_id
        JOIN callboard.workflow w ON w.id = e.workflow_id
    WHERE e.workflow_id = ANY(%s::uuid[])
"""
_ACCOUNTS: Final = (
    "SELECT address, id, kind, balance FROM callboard.account WHERE address = ANY(%s)"
)
_AGENTS: Final = """
    SELECT did, owner_did, revision, token_revision, status = 'active', public_key, key_number,
        coalesce(key_from_ms, registered_ms), inherited_from_did, card_counter, card_number,
        card_hash, lineage_hash, is_trusted, proven_by, capability_ids
    FROM callboard.agent WHERE did = ANY(%s)
"""
_SHARES: Final = """
    SELECT a.did, (SELECT coalesce(json_object_agg(s.depositor_did, s.micro), '{}')
        FROM callboard.stake_share s WHERE s.agent_did = a.did AND s.micro > 0)
    FROM unnest(%s::text[]) AS a (did)
"""
_REVOCATIONS: Final = """
    SELECT did, revoked_by_did, expires_ms FROM callboard.revocation
    WHERE did = ANY(%s) AND ended_ms IS NULL
"""
_STAKED: Final = """
    SELECT n.workflow_id::text, n.name, n.attempt, n.stake_micro FROM callboard.node n
    JOIN unnest(%s::uuid[], %s::text[]) AS p(workflow_id, name)
        ON n.workflow_id = p.workflow_id AND n.name = p.name WHERE n.stake_micro > 0
"""
_TRIGGERS: Final = f"""
    SELECT id::text, id::text, {", ".join(TRIGGER_STATE[1:])}
    FROM callboard.trigger WHERE id = ANY(%s::uuid[])
"""


async def load_read_set(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Load the rows of a read set that the cache lacks.

    The order matters: escrows come first, because they name the payers whose wallets come next.
    """

    async def fill(
        known: dict[Any, Any], keys: Iterable[Any], query: str, make: Callable[..., Any]
    ) -> None:
        """Load the rows that one part of the cache lacks; a key without a row maps to None."""
        missing = [key for key in keys if key not in known]
        if not missing:
            return
        known.update(dict.fromkeys(missing))
        columns = columns_of(missing) if isinstance(missing[0], tuple) else [missing]
        width = len(columns)
        for row in await fetch(connection, query, columns):
            known[row[:width] if width > 1 else row[0]] = make(*row[width:])

    await fill(cache.escrows, read_set.workflow_ids, _ESCROWS, partial(_escrow, cache))
    rounds = [place for place in read_set.rounds if place not in cache.rounds]
    if rounds:
        cache.rounds.update(dict.fromkeys(rounds))
        await load_rounds(connection, cache, rounds)
    bidders = find_bidders(cache, read_set)
    ending = filter(None, map(cache.escrows.get, read_set.ending))
    wallets = read_set.wallets.union(escrow.payer_did for escrow in ending)
    stakes = read_set.stakes | bidders
    addresses = (
        *map(wallet_address, wallets),
        *map(stake_address, stakes),
        *map(stake_locked_address, stakes),
    )
    await fill(cache.accounts, addresses, _ACCOUNTS, Account)
    await fill(cache.agents, read_set.agent_dids | read_set.trusted | bidders, _AGENTS, _agent)
    await _load_agent_counts(connection, cache, read_set)
    claimed = [did for did in read_set.claimed_dids if cache.agents.get(did) is None]
    if claimed:
        cache.callers.update(await _callers_among(connection, claimed))
    await fill(cache.shares, read_set.share_dids, _SHARES, dict)
    await fill(cache.revoked, read_set.trusted, _REVOCATIONS, Revocation)
    await _load_owned(connection, cache, read_set)
    quota_dids = read_set.quota_dids.union(did for did, _ in read_set.published)
    await fill(cache.quotas, quota_dids, QUOTA_LIMITS, QuotaLimits)
    await load_usage(connection, cache, read_set)
    await fill(cache.staked, read_set.staked, _STAKED, lambda *locked: locked)
    await fill(cache.kept_bids, read_set.kept_bids, COUNT_KEPT, int)
    await fill(cache.triggers, read_set.trigger_ids, _TRIGGERS, _trigger)
    if read_set.new_keys:
        await _load_former_keys(connection, cache, read_set.new_keys)
    if read_set.credential_keys:
        cache.live_keys.update(await read_keys(connection, read_set.credential_keys))
    if read_set.signed_dids:
        cache.key_owners.update(await _key_owners_among(connection, read_set.signed_dids))
    if read_set.member_ids:
        await load_gone_members(connection, cache, read_set.member_ids)


def _escrow(cache: StateCache, address: str, account_id: int, balance: int, *terms: Any) -> Escrow:
    # Each account has one object, so all its users see the same balance.
    account = cache.accounts.get(address) or Account(account_id, "escrow", balance)
    cache.accounts[address] = account
    *others, code = terms
    stored = [account, *others, code and QuarantineCode(code)]
    return Escrow(*stored)


def _agent(*fields: Any) -> KnownAgent:
    *others, proven_by, offered = fields
    stored = [*others, proven_by and OwnershipProof(proven_by), tuple(offered)]
    return KnownAgent(*stored)


def _trigger(*state: Any) -> KnownTrigger:
    return KnownTrigger(**dict(zip(TRIGGER_STATE, state, strict=True)))


async def _load_agent_counts(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Count the active agents of each owner whose count this batch may change."""
    owners = set()
    for did, owner_did in read_set.registered:
        known = cache.agents[did]
        if known is not None and not known.is_active:
            owners.add(known.counted_did)
        if known is not None and known.counted_did != known.owner_did:
            owners |= {known.counted_did, known.owner_did}
        if known is None or (known.proven_by is None and known.owner_did != owner_did):
            owners.add(owner_did)
    if not owners:
        return
    cache.agent_counts.update(dict.fromkeys(owners, 0))
    rows = await fetch(
        connection,
        "SELECT coalesce(inherited_from_did, owner_did), count(*) FROM callboard.agent"
        " WHERE status = 'active' AND (inherited_from_did = ANY(%(owners)s)"
        " OR inherited_from_did IS NULL AND owner_did = ANY(%(owners)s)) GROUP BY 1",
        {"owners": list(owners)},
    )
    cache.agent_counts.update(dict(rows))


async def _callers_among(connection: Connection, dids: list[str]) -> set[str]:
    """Return the DIDs that own an API key or an agent, active or not."""
    query = (
        "SELECT did FROM unnest(%s::text[]) AS claimed (did)"
        " WHERE EXISTS (SELECT FROM callboard.api_key AS own WHERE own.owner_did = claimed.did)"
        " OR EXISTS (SELECT FROM callboard.agent AS own WHERE own.owner_did = claimed.did)"
    )
    return {did for (did,) in await fetch(connection, query, (dids,))}


async def _key_owners_among(connection: Connection, dids: Collection[str]) -> set[str]:
    """Return the DIDs that own an API key."""
    query = "SELECT DISTINCT owner_did FROM callboard.api_key WHERE owner_did = ANY(%s)"
    return {did for (did,) in await fetch(connection, query, (list(dids),))}


async def _load_former_keys(connection: Connection, cache: StateCache, new_keys: set[Pair]) -> None:
    """Load the former keys among the given (agent, key) pairs and the current keys of these agents.

    Call it after the agents are loaded, because it reads their current keys from the cache.
    """
    known = {did: cache.agents.get(did) for did, _ in new_keys}
    current = {
        (did, agent.public_key)
        for did, agent in known.items()
        if agent is not None and agent.public_key is not None
    }
    query = (
        "SELECT f.agent_did, f.public_key FROM callboard.former_key f"
        " JOIN unnest(%s::text[], %s::text[]) AS n(agent_did, public_key)"
        " ON f.agent_did = n.agent_did AND f.public_key = n.public_key"
    )
    for did, public_key in await fetch(connection, query, columns_of(new_keys | current)):
        cache.former_keys.add((did, public_key))


async def _load_owned(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Load the total credits of owners, but only if one owner's total could exceed the bound.

    That is possible only if the credits issued, with the deposits of this batch, exceed the bound.
    """
    world = cache.accounts.get(WORLD_ADDRESS)
    if not read_set.owned_dids or world is None:
        return
    if read_set.deposited_micro - world.balance <= MICRO_MAX:
        return
    rows = await fetch(
        connection,
        "SELECT d.did,"
        " coalesce((SELECT balance FROM callboard.account WHERE address = 'wallet:' || d.did), 0)"
        " + (SELECT coalesce(sum(micro), 0) FROM callboard.stake_share"
        " WHERE depositor_did = d.did AND micro > 0)"
        " + (SELECT coalesce(sum(a.balance), 0) FROM callboard.escrow e"
        " JOIN callboard.account a ON a.id = e.account_id"
        " WHERE e.payer_did = d.did AND e.status = 'held')"
        " FROM unnest(%s::text[]) AS d(did)",
        (list(read_set.owned_dids),),
    )
    cache.owned.update((did, int(micro)) for did, micro in rows)


async def load_settled(connection: Connection, pairs: Collection[Pair]) -> set[Pair]:
    """Return the (workflow, node or line) pairs whose node has succeeded or was paid."""
    rows = await fetch(
        connection,
        "WITH pair AS (SELECT * FROM unnest(%s::uuid[], %s::text[]) AS p(workflow_id, name))"
        " SELECT e.workflow_id::text, e.node_id FROM callboard.entry e JOIN pair p"
        " ON e.workflow_id = p.workflow_id AND e.node_id = p.name AND e.kind = 'node_payment'"
        " UNION SELECT n.workflow_id::text, n.name FROM callboard.node n JOIN pair p"
        " ON n.workflow_id = p.workflow_id AND n.name = p.name AND n.status = 'success'",
        columns_of(pairs),
    )
    return {(workflow_id, name) for workflow_id, name in rows}


async def stored_commands(
    connection: Connection, keys: Iterable[str]
) -> dict[str, tuple[bytes | None, Outcome]]:
    """Return the request hash and the first outcome of every key that was used before."""
    known: dict[str, tuple[bytes | None, Outcome]] = {}
    query = (
        "SELECT id, request_hash, result, error, detail FROM callboard.command WHERE id = ANY(%s)"
    )
    for key, request_hash, result, error, detail in await fetch(connection, query, (list(keys),)):
        status = OutcomeStatus.APPLIED if error is None else OutcomeStatus.REJECTED
        code = ErrorCode(error) if error is not None else None
        known[key] = (request_hash, Outcome(status, result or {}, code, detail or ""))
    return known
