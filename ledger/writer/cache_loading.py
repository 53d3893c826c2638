"""What the writer reads: only what planning needs and the books do not have yet.

Set-based, at most one statement per table, none at all in the usual batch. money.md section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import psycopg

from core.errors import ErrorCode, QuarantineCode
from core.money import MICRO_MAX
from ledger.auctions.round_loading import load_rounds
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.keys.key_loading import load_keys
from ledger.quotas.quota_loading import load_quotas
from ledger.writer.barrier_loading import load_grounds
from ledger.writer.read_set import Needs
from ledger.writer.state_cache import (
    WORLD_ADDRESS,
    Account,
    Books,
    Escrow,
    KnownAgent,
    Revocation,
    escrow_address,
    wallet_address,
)

Connection = psycopg.AsyncConnection[Any]


async def load_needs(connection: Connection, books: Books, wanted: Needs) -> None:
    """Fill the books with what a batch needs.

    The order matters: escrows first, because they name the payers whose wallets are needed next.
    """
    missing = [key for key in wanted.workflow_ids if key not in books.escrows]
    if missing:
        await _load_escrows(connection, books, missing)
    addresses = set(wanted.addresses)
    for workflow_id in wanted.ending:
        escrow = books.escrows.get(workflow_id)
        if escrow is not None:
            addresses.add(wallet_address(escrow.payer_did))
    if wanted.grounded is not None:
        books.grounds, more = await load_grounds(connection, wanted.grounded)
        addresses |= more
    missing = [address for address in addresses if address not in books.accounts]
    if missing:
        await _load_accounts(connection, books, missing)
    missing = [did for did in wanted.agent_dids if did not in books.agents]
    if missing:
        await _load_agents(connection, books, missing)
    missing = [did for did in wanted.share_dids if did not in books.shares]
    if missing:
        await _load_shares(connection, books, missing)
    missing = [did for did in wanted.trusted if did not in books.revoked]
    if missing:
        await _load_revocations(connection, books, missing)
    await _load_owned(connection, books, wanted)
    await load_quotas(connection, books, wanted)
    missing_nodes = [pair for pair in wanted.staked if pair not in books.staked]
    if missing_nodes:
        await _load_staked(connection, books, missing_nodes)
    missing_nodes = [pair for pair in wanted.rounds if pair not in books.rounds]
    if missing_nodes:
        await load_rounds(connection, books, missing_nodes)
    await load_keys(connection, books, wanted)
    for owner in wanted.claimed_owners:
        cursor = await connection.execute(
            "SELECT count(*) FROM callboard.workflow WHERE owner = %s AND completed_ms IS NULL",
            (owner,),
        )
        row = await cursor.fetchone()
        assert row is not None
        books.claimable[owner] = row[0]


async def _load_escrows(connection: Connection, books: Books, workflow_ids: list[str]) -> None:
    books.escrows.update(dict.fromkeys(workflow_ids))
    cursor = await connection.execute(
        "SELECT e.workflow_id::text, e.payer_did, e.amount, e.fee_bps, w.created_ms, e.status,"
        " w.is_halted, w.quarantine_code, a.id, a.balance"
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
        account = books.accounts.get(address) or Account(account_id, "escrow", balance)
        books.accounts[address] = account
        books.escrows[workflow_id] = Escrow(
            account,
            payer_did,
            amount,
            fee_bps,
            published_ms,
            is_released=status == "released",
            is_halted=is_halted,
            quarantine=None if quarantine is None else QuarantineCode(quarantine),
        )


async def _load_accounts(connection: Connection, books: Books, addresses: list[str]) -> None:
    books.accounts.update(dict.fromkeys(addresses))
    cursor = await connection.execute(
        "SELECT address, id, kind, balance FROM callboard.account WHERE address = ANY(%s)",
        (addresses,),
    )
    for address, account_id, kind, balance in await cursor.fetchall():
        books.accounts[address] = Account(account_id, kind, balance)


async def _load_agents(connection: Connection, books: Books, dids: list[str]) -> None:
    books.agents.update(dict.fromkeys(dids))
    cursor = await connection.execute(
        "SELECT did, owner_did, revision, token_revision, status = 'active'"
        " FROM callboard.agent WHERE did = ANY(%s)",
        (dids,),
    )
    for did, *fields in await cursor.fetchall():
        books.agents[did] = KnownAgent(*fields)


async def _load_revocations(connection: Connection, books: Books, dids: list[str]) -> None:
    books.revoked.update(dict.fromkeys(dids))
    cursor = await connection.execute(
        "SELECT did, revoked_by_did, expires_ms FROM callboard.revocation"
        " WHERE did = ANY(%s) AND ended_ms IS NULL",
        (dids,),
    )
    for did, *fields in await cursor.fetchall():
        books.revoked[did] = Revocation(*fields)


async def _load_owned(connection: Connection, books: Books, wanted: Needs) -> None:
    """Read what owners have in all, if so much is issued that one of them could have too much."""
    world = books.accounts.get(WORLD_ADDRESS)
    if not wanted.owned_dids or world is None:
        return
    if wanted.deposited_micro - world.balance <= MICRO_MAX:
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
        (list(wanted.owned_dids),),
    )
    books.owned.update((did, int(micro)) for did, micro in await cursor.fetchall())


async def _load_shares(connection: Connection, books: Books, dids: list[str]) -> None:
    books.shares.update({did: {} for did in dids})
    cursor = await connection.execute(
        "SELECT agent_did, depositor_did, micro FROM callboard.stake_share"
        " WHERE agent_did = ANY(%s) AND micro > 0",
        (dids,),
    )
    for agent_did, depositor_did, micro in await cursor.fetchall():
        books.shares[agent_did][depositor_did] = micro


async def _load_staked(
    connection: Connection, books: Books, pairs: Sequence[tuple[str, str]]
) -> None:
    books.staked.update(dict.fromkeys(pairs))
    cursor = await connection.execute(
        "SELECT n.workflow_id::text, n.name, n.attempt, n.stake_micro FROM callboard.node n"
        " JOIN unnest(%s::uuid[], %s::text[]) AS p(workflow_id, name)"
        " ON n.workflow_id = p.workflow_id AND n.name = p.name WHERE n.stake_micro > 0",
        ([workflow_id for workflow_id, _ in pairs], [name for _, name in pairs]),
    )
    for workflow_id, name, attempt, micro in await cursor.fetchall():
        books.staked[workflow_id, name] = (attempt, micro)


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
