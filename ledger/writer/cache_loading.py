"""What the writer reads: only what planning needs and the state cache does not have yet.

Set-based, at most one statement per table, none at all in the usual batch. Only as a writer begins,
or begins again after a batch that was rolled back, what is small and asked for by every batch is
read whole: the head, the members and the shards. money.md (Commands and keys).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from core.errors import ErrorCode, QuarantineCode
from core.money import MICRO_MAX
from core.records.statuses import OwnershipProof
from ledger.auctions.round_loading import count_kept_bids, find_bidders, load_rounds
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.errors import LedgerFenced
from ledger.keys.key_loading import read_keys
from ledger.quotas.quota_loading import load_quotas
from ledger.shards.cluster_loading import load_cluster, load_gone_members
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
    escrow_address,
    stake_address,
    stake_locked_address,
    wallet_address,
)

Connection = psycopg.AsyncConnection[Any]


async def read_state_cache(connection: Connection, epoch: int, leases: Leases) -> StateCache:
    """Return the committed state.

    Args:
        epoch: of this writer.
        leases: which members live.

    Raises:
        LedgerFenced: another writer has taken over since this epoch.
    """
    cursor = await connection.execute(
        "SELECT entry_seq, audit_seq, hash, (SELECT max(id) FROM callboard.account), epoch,"
        " (SELECT created_ms FROM callboard.audit ORDER BY id DESC LIMIT 1)"
        " FROM callboard.head"
    )
    row = await cursor.fetchone()
    assert row is not None
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
    await load_read_set(connection, cache, ReadSet(addresses={WORLD_ADDRESS, FEE_ADDRESS}))
    await load_cluster(connection, cache)
    return cache


async def load_read_set(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Fill the state cache with what a batch needs.

    The order matters: escrows first, because they name the payers whose wallets are needed next.
    """
    missing = [key for key in read_set.workflow_ids if key not in cache.escrows]
    if missing:
        await _load_escrows(connection, cache, missing)
    missing_nodes = [pair for pair in read_set.rounds if pair not in cache.rounds]
    if missing_nodes:
        await load_rounds(connection, cache, missing_nodes)
    bidders = find_bidders(cache, read_set)
    addresses = read_set.addresses | {
        address(did) for did in bidders for address in (stake_address, stake_locked_address)
    }
    for workflow_id in read_set.ending:
        escrow = cache.escrows.get(workflow_id)
        if escrow is not None:
            addresses.add(wallet_address(escrow.payer_did))
    missing = [address for address in addresses if address not in cache.accounts]
    if missing:
        await _load_accounts(connection, cache, missing)
    agents = read_set.agent_dids | read_set.trusted | bidders
    missing = [did for did in agents if did not in cache.agents]
    if missing:
        await _load_agents(connection, cache, missing)
    await _load_agent_counts(connection, cache, read_set)
    claimed = [did for did in read_set.claimed_dids if cache.agents.get(did) is None]
    if claimed:
        await _load_callers(connection, cache, claimed)
    missing = [did for did in read_set.share_dids if did not in cache.shares]
    if missing:
        await _load_shares(connection, cache, missing)
    missing = [did for did in read_set.trusted if did not in cache.revoked]
    if missing:
        await _load_revocations(connection, cache, missing)
    await _load_owned(connection, cache, read_set)
    await load_quotas(connection, cache, read_set)
    missing_nodes = [pair for pair in read_set.staked if pair not in cache.staked]
    if missing_nodes:
        await _load_staked(connection, cache, missing_nodes)
    missing_nodes = [pair for pair in read_set.kept_bids if pair not in cache.kept_bids]
    if missing_nodes:
        await count_kept_bids(connection, cache, missing_nodes)
    missing = [one for one in read_set.trigger_ids if one not in cache.triggers]
    if missing:
        await _load_triggers(connection, cache, missing)
    if read_set.new_keys:
        await _load_former_keys(connection, cache, read_set.new_keys)
    if read_set.credential_keys:
        cache.live_keys.update(await read_keys(connection, read_set.credential_keys))
    if read_set.signed_dids:
        await _load_key_owners(connection, cache, read_set.signed_dids)
    if read_set.member_ids:
        await load_gone_members(connection, cache, read_set.member_ids)


async def _load_escrows(connection: Connection, cache: StateCache, workflow_ids: list[str]) -> None:
    cache.escrows.update(dict.fromkeys(workflow_ids))
    cursor = await connection.execute(
        "SELECT e.workflow_id::text, e.payer_did, e.amount, e.fee_bps, w.created_ms,"
        " e.status, w.is_halted, w.quarantine_code, a.id, a.balance"
        " FROM callboard.escrow e JOIN callboard.account a ON a.id = e.account_id"
        " JOIN callboard.workflow w ON w.id = e.workflow_id"
        " WHERE e.workflow_id = ANY(%s::uuid[])",
        (workflow_ids,),
    )
    for (
        workflow_id,
        payer_did,
        amount,
        fee_bps,
        published_ms,
        status,
        is_halted,
        quarantine,
        account_id,
        balance,
    ) in await cursor.fetchall():
        # One account, one object: whatever moves its balance is seen everywhere.
        address = escrow_address(workflow_id)
        account = cache.accounts.get(address) or Account(account_id, "escrow", balance)
        cache.accounts[address] = account
        cache.escrows[workflow_id] = Escrow(
            account,
            payer_did,
            amount,
            fee_bps,
            published_ms,
            is_released=status == "released",
            is_halted=is_halted,
            quarantine=None if quarantine is None else QuarantineCode(quarantine),
        )


async def _load_accounts(connection: Connection, cache: StateCache, addresses: list[str]) -> None:
    cache.accounts.update(dict.fromkeys(addresses))
    cursor = await connection.execute(
        "SELECT address, id, kind, balance FROM callboard.account WHERE address = ANY(%s)",
        (addresses,),
    )
    for address, account_id, kind, balance in await cursor.fetchall():
        cache.accounts[address] = Account(account_id, kind, balance)


async def _load_agents(connection: Connection, cache: StateCache, dids: list[str]) -> None:
    cache.agents.update(dict.fromkeys(dids))
    cursor = await connection.execute(
        "SELECT did, owner_did, revision, token_revision, status = 'active', public_key,"
        " key_number, coalesce(key_from_ms, registered_ms), inherited_from_did, proven_by,"
        " card_counter, card_number, card_hash, lineage_hash, is_trusted, capability_ids"
        " FROM callboard.agent WHERE did = ANY(%s)",
        (dids,),
    )
    for (
        did,
        *fields,
        proven_by,
        counter,
        number,
        card,
        place,
        trusted,
        offered,
    ) in await cursor.fetchall():
        cache.agents[did] = replace(
            KnownAgent(*fields),
            proven_by=None if proven_by is None else OwnershipProof(proven_by),
            card_counter=counter,
            card_number=number,
            card_hash=card,
            lineage_hash=place,
            is_trusted=trusted,
            capability_ids=tuple(offered),
        )


async def _load_agent_counts(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Read how many active agents those owners have that may get another one."""
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
    cursor = await connection.execute(
        "SELECT coalesce(inherited_from_did, owner_did), count(*) FROM callboard.agent"
        " WHERE status = 'active' AND (inherited_from_did = ANY(%(owners)s)"
        " OR inherited_from_did IS NULL AND owner_did = ANY(%(owners)s)) GROUP BY 1",
        {"owners": list(owners)},
    )
    cache.agent_counts.update(await cursor.fetchall())


async def _load_callers(connection: Connection, cache: StateCache, dids: list[str]) -> None:
    """Read which of these DIDs have, or had, keys or agents of their own."""
    cursor = await connection.execute(
        "SELECT did FROM unnest(%s::text[]) AS claimed (did)"
        " WHERE EXISTS (SELECT FROM callboard.api_key AS own WHERE own.owner_did = claimed.did)"
        " OR EXISTS (SELECT FROM callboard.agent AS own WHERE own.owner_did = claimed.did)",
        (dids,),
    )
    cache.callers.update(did for (did,) in await cursor.fetchall())


async def _load_key_owners(
    connection: Connection, cache: StateCache, dids: Collection[str]
) -> None:
    cursor = await connection.execute(
        "SELECT DISTINCT owner_did FROM callboard.api_key WHERE owner_did = ANY(%s)", (list(dids),)
    )
    cache.key_owners.update(did for (did,) in await cursor.fetchall())


async def _load_former_keys(
    connection: Connection, cache: StateCache, new_keys: set[tuple[str, str]]
) -> None:
    """Read which of these keys, and of the current keys of their agents, are former ones.

    After the agents, whose current keys it asks for.
    """
    known = {did: cache.agents.get(did) for did, _ in new_keys}
    current = {
        (did, agent.public_key)
        for did, agent in known.items()
        if agent is not None and agent.public_key is not None
    }
    pairs = list(new_keys | current)
    cursor = await connection.execute(
        "SELECT f.agent_did, f.public_key FROM callboard.former_key f"
        " JOIN unnest(%s::text[], %s::text[]) AS n(agent_did, public_key)"
        " ON f.agent_did = n.agent_did AND f.public_key = n.public_key",
        ([did for did, _ in pairs], [key for _, key in pairs]),
    )
    cache.former_keys.update(await cursor.fetchall())


async def _load_revocations(connection: Connection, cache: StateCache, dids: list[str]) -> None:
    cache.revoked.update(dict.fromkeys(dids))
    cursor = await connection.execute(
        "SELECT did, revoked_by_did, expires_ms FROM callboard.revocation"
        " WHERE did = ANY(%s) AND ended_ms IS NULL",
        (dids,),
    )
    for did, *fields in await cursor.fetchall():
        cache.revoked[did] = Revocation(*fields)


async def _load_owned(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Read what owners have in all, if so much is issued that one of them could have too much."""
    world = cache.accounts.get(WORLD_ADDRESS)
    if not read_set.owned_dids or world is None:
        return
    if read_set.deposited_micro - world.balance <= MICRO_MAX:
        return
    cursor = await connection.execute(
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
    cache.owned.update((did, int(micro)) for did, micro in await cursor.fetchall())


async def _load_triggers(connection: Connection, cache: StateCache, ids: list[str]) -> None:
    cache.triggers.update(dict.fromkeys(ids))
    columns = ", ".join(TRIGGER_STATE)
    cursor = await connection.execute(
        f"SELECT {columns} FROM callboard.trigger WHERE id = ANY(%s::uuid[])", (ids,)
    )
    for trigger_id, *state in await cursor.fetchall():
        known = dict(zip(TRIGGER_STATE[1:], state, strict=True))
        cache.triggers[str(trigger_id)] = KnownTrigger(id=str(trigger_id), **known)


async def _load_shares(connection: Connection, cache: StateCache, dids: list[str]) -> None:
    cache.shares.update({did: {} for did in dids})
    cursor = await connection.execute(
        "SELECT agent_did, depositor_did, micro FROM callboard.stake_share"
        " WHERE agent_did = ANY(%s) AND micro > 0",
        (dids,),
    )
    for agent_did, depositor_did, micro in await cursor.fetchall():
        cache.shares[agent_did][depositor_did] = micro


async def _load_staked(
    connection: Connection, cache: StateCache, pairs: Sequence[tuple[str, str]]
) -> None:
    cache.staked.update(dict.fromkeys(pairs))
    cursor = await connection.execute(
        "SELECT n.workflow_id::text, n.name, n.attempt, n.stake_micro FROM callboard.node n"
        " JOIN unnest(%s::uuid[], %s::text[]) AS p(workflow_id, name)"
        " ON n.workflow_id = p.workflow_id AND n.name = p.name WHERE n.stake_micro > 0",
        ([workflow_id for workflow_id, _ in pairs], [name for _, name in pairs]),
    )
    for workflow_id, name, attempt, micro in await cursor.fetchall():
        cache.staked[workflow_id, name] = (attempt, micro)


async def load_settled(
    connection: Connection, pairs: Sequence[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return which of these (workflow, node or line) pairs have succeeded or are paid already."""
    cursor = await connection.execute(
        "WITH pair AS (SELECT * FROM unnest(%s::uuid[], %s::text[]) AS p(workflow_id, name))"
        " SELECT e.workflow_id::text, e.node_id FROM callboard.entry e JOIN pair p"
        " ON e.workflow_id = p.workflow_id AND e.node_id = p.name AND e.kind = 'node_payment'"
        " UNION SELECT n.workflow_id::text, n.name FROM callboard.node n JOIN pair p"
        " ON n.workflow_id = p.workflow_id AND n.name = p.name AND n.status = 'success'",
        ([workflow_id for workflow_id, _ in pairs], [name for _, name in pairs]),
    )
    return set(await cursor.fetchall())


async def stored_commands(
    connection: Connection, commands: Iterable[Command]
) -> dict[str, tuple[bytes | None, Outcome]]:
    """Return the request hash and first outcome of every key that was used before."""
    cursor = await connection.execute(
        "SELECT id, request_hash, result, error, detail FROM callboard.command WHERE id = ANY(%s)",
        ([command.key for command in commands],),
    )
    known: dict[str, tuple[bytes | None, Outcome]] = {}
    for key, request_hash, result, error, detail in await cursor.fetchall():
        status = OutcomeStatus.APPLIED if error is None else OutcomeStatus.REJECTED
        code = ErrorCode(error) if error is not None else None
        known[key] = (request_hash, Outcome(status, result or {}, code, detail or ""))
    return known


async def has_stored(connection: Connection, keys: Collection[str]) -> bool:
    """Say whether any of these keys was used before."""
    if not keys:
        return False
    query = "SELECT EXISTS (SELECT 1 FROM callboard.command WHERE id = ANY(%s))"
    row = await (await connection.execute(query, (list(keys),))).fetchone()
    assert row is not None
    return bool(row[0])
