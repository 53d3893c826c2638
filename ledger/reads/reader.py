"""Committed rows, read straight from Postgres: what was acknowledged is what a reader sees.

Short transactions on a small pool, as a role that can only read. Rows are plain dicts keyed by
column, amounts in micro-credits (`…_micro`, `amount`, `balance`), times in Unix milliseconds
(`…_ms`); their JSON form is the API's business. Reference: features.md (Workflows), money.md
(Entries, Audit chain).
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, Unpack

import sqlalchemy as sql
from sqlalchemy import LargeBinary
from sqlalchemy.dialects.postgresql import ARRAY

from core.ids import canonical_uuid
from ledger.connections.pools import Pool
from ledger.reads.agent_pages import HEARD_AGENT, HIDDEN_AGENT, agents_statement
from ledger.reads.audit_filter import AuditFilter, audit_select
from ledger.reads.prepared import PreparedReads
from ledger.reads.search_reads import SearchReads
from ledger.reads.stored import (
    NODES,
    WORKFLOWS,
    Balance,
    RowDict,
    StoredWorkflow,
    workflow_select,
)
from ledger.reads.turns import ReadTurns
from ledger.schema import (
    READER_ROLE,
    account,
    agent,
    api_key,
    audit_party,
    command,
    entry,
    escrow,
    revocation,
    workflow,
)
from ledger.writer.state_cache import wallet_address

__all__ = ["Balance", "LedgerReader", "RowDict", "RowPage", "StoredWorkflow"]

READ_TIMEOUT_S: Final = 5.0
_HASH_COLUMNS: Final = ("hash", "previous_hash")
# Spelt as the partial indexes are.
_IS_UNFINISHED: Final = workflow.c.completed_ms.is_(None)
# Where a caller names no bound of a page.
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_HASHES: Final = sql.any_(sql.bindparam("hashes", type_=ARRAY(LargeBinary)))
_NOW_MS: Final = sql.literal_column("extract(epoch FROM clock_timestamp()) * 1000", sql.Double)
# By the secret of now, and in the overlap of a rotation by the one of before.
_KEYS: Final = sql.select(
    api_key,
    sql.exists()
    .where(
        revocation.c.did == api_key.c.owner_did,
        revocation.c.ended_ms.is_(None),
        revocation.c.expires_ms.is_(None) | (revocation.c.expires_ms > _NOW_MS),
    )
    .label("is_owner_revoked"),
).where(
    (api_key.c.hash == _HASHES)
    | ((api_key.c.previous_hash == _HASHES) & (api_key.c.previous_ends_ms > _NOW_MS))
)
# Made once: to make it is a third of what its request takes.
_BALANCE: Final = sql.select(
    sql.func.coalesce(
        sql.select(account.c.balance)
        .where(account.c.address == sql.bindparam("wallet"))
        .scalar_subquery(),
        0,
    ).label("balance"),
    sql.select(sql.func.coalesce(sql.func.sum(account.c.balance), 0))
    .select_from(escrow.join(account, account.c.id == escrow.c.account_id))
    .where(escrow.c.payer_did == sql.bindparam("payer"), escrow.c.status == "held")
    .scalar_subquery()
    .label("held"),
)


_AGENT: Final = sql.select(*(one for one in agent.c if one.name != "signing_secret")).where(
    agent.c.did == sql.bindparam("did")
)


class RowPage(list[RowDict]):
    """Rows of a list; `is_cut`: more were asked for and exist, but would be too large.

    `looked_to`: the key of the last row that was looked at, where the read has ended before the
    list and there is nothing more to show of it; None: it has not.
    """

    def __init__(
        self, rows: Sequence[RowDict], *, is_cut: bool, looked_to: int | None = None
    ) -> None:
        super().__init__(rows)
        self.is_cut = is_cut
        self.looked_to = looked_to

    @classmethod
    def of(cls, found: list[RowDict]) -> RowPage:
        """Return the page of rows that also say what it would have without its bound of bytes."""
        row_count = 0
        for row in found:
            row_count = row.pop("page_rows")
            del row["bytes_before"]
        return cls(found, is_cut=row_count > len(found))


class LedgerReader(Pool):
    """Read models over a small pool of connections."""

    def __init__(self, url: str, *, pool_size: int = 5, timeout_s: float = READ_TIMEOUT_S) -> None:
        """Make the pool; connections are opened when first needed.

        Args:
            url: `postgresql://…` of a login that is a member of `ledger_reader`.
            timeout_s: how long a read waits for a connection, and then for the server.
        """
        super().__init__(url, READER_ROLE, "callboard-reader", size=pool_size, timeout_s=timeout_s)
        self.turns = ReadTurns()
        # Connections of their own: pages may be large, and a look-up is never behind one.
        self.records = PreparedReads(url, timeout_s=timeout_s)
        self.lookups = PreparedReads(url, timeout_s=timeout_s)
        self.searches = SearchReads(url, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close all connections."""
        await self.records.close()
        await self.lookups.close()
        await self.searches.close()
        await super().close()

    async def ping(self) -> None:
        """Return when the database answers."""
        await self.rows(sql.text("SELECT 1"))

    # -- workflows --------------------------------------------------------------------------------

    async def workflow(self, workflow_id: str) -> StoredWorkflow | None:
        """Return a workflow with its nodes and all of their results, by its own id."""
        known = canonical_uuid(workflow_id)
        values = {"ids": [known]}
        rows = [] if known is None else await self.rows(WORKFLOWS, values)
        return StoredWorkflow(rows[0], await self.rows(NODES, values)) if rows else None

    async def workflows(
        self,
        *,
        payer_did: str | None = None,
        status: str | None = None,
        is_quarantined: bool | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        limit: int = 50,
        offset: int = 0,
        before_id: str | None = None,
        command_key: str | None = None,
    ) -> list[RowDict]:
        """Return workflow rows without nodes and manifest, newest first.

        Args:
            command_key: of the publish.
            start_ms, end_ms: when they were created; the end is excluded.
            is_quarantined: whether they wait for being resumed; None: whether or not.
            before_id: the last id of the page before (keyset paging).
        """
        query = workflow_select(with_manifest=False)
        if is_quarantined is not None:
            waits = sql.and_(workflow.c.quarantined_ms.is_not(None), _IS_UNFINISHED)
            query = query.where(waits if is_quarantined else sql.not_(waits))
        if command_key is not None:
            known = await self._workflow_of(command_key)
            if known is None:
                return []
            query = query.where(workflow.c.id == known)
        if start_ms is not None:
            query = query.where(workflow.c.created_ms >= start_ms)
        if end_ms is not None:
            query = query.where(workflow.c.created_ms < end_ms)
        before = None if before_id is None else canonical_uuid(before_id)
        if before_id is not None and before is None:
            return []
        return await self.listed(
            query, "id", before, limit=limit, offset=offset, is_newest_first=True,
            payer_did=payer_did, status=status,
        )  # fmt: skip

    async def _workflow_of(self, command_key: str) -> str | None:
        row = await self.row(sql.select(command.c.result).where(command.c.id == command_key))
        return None if row is None else (row["result"] or {}).get("workflowId")

    async def escrow(self, workflow_id: str) -> RowDict | None:
        """Return a workflow's escrow with what is left in it (`remaining_micro`)."""
        known = canonical_uuid(workflow_id)
        if known is None:
            return None
        query = (
            sql.select(escrow, account.c.balance.label("remaining_micro"))
            .join(account, account.c.id == escrow.c.account_id)
            .where(escrow.c.workflow_id == known)
        )
        return await self.row(query)

    # -- agents and keys --------------------------------------------------------------------------

    async def agents(
        self,
        *,
        limit: int = 50,
        offset: int = 0,
        bytes_max: int = PAGE_BYTES_MAX,
        viewer: str | None = None,
        **asked: str | None,
    ) -> RowPage:
        """Return agent rows, as `heard_agent`, in the order of their DIDs.

        Args:
            viewer: the DID that may see them, "" for a caller without one; None: all are shown.
            bytes_max: of the cards: the page ends with the row that passes it.
            asked: by `capability_id`, `owner_did`, `status`, `name`, `author`, `model` (those of
                the card's metadata, exactly) or `after_did`; None: any.
        """
        values = {one: wanted for one, wanted in asked.items() if wanted is not None}
        found = await self.records.rows(
            agents_statement(frozenset(values)),
            {**values, "viewer": viewer, "limit": limit, "offset": offset, "bytes_max": bytes_max},
        )
        return RowPage.of(found)

    async def agent(self, did: str) -> RowDict | None:
        """Return an agent's row, its signing secret left out."""
        return await self.row(_AGENT, {"did": did})

    async def heard_agent(self, did: str) -> RowDict | None:
        """Return an agent's row with what is heard of it (`live_of`) and whether it `is_revoked`.

        Its signing secret is left out.
        """
        rows = await self.lookups.rows(HEARD_AGENT, {"did": did})
        return rows[0] if rows else None

    async def is_hidden(self, did: str, viewer: str | None) -> bool:
        """Say whether an agent's card is in a private subnet that a DID may not see; "": nobody."""
        rows = await self.lookups.rows(HIDDEN_AGENT, {"did": did, "viewer": viewer})
        return bool(rows[0]["is_hidden"])

    async def api_keys_by_hashes(self, hashes: Sequence[bytes]) -> dict[bytes, RowDict]:
        """Return the rows of API keys by their SHA-256, revoked ones too: one statement.

        Each also says whether its owner `is_owner_revoked` now. A rotated key is known by the hash
        of before until its `previous_ends_ms`.
        """
        asked = set(hashes)
        found: dict[bytes, RowDict] = {}
        for row in await self.rows(_KEYS, {"hashes": list(asked)}):
            for digest in (row["hash"], row["previous_hash"]):
                if digest is not None and bytes(digest) in asked:
                    found[bytes(digest)] = row
        return found

    async def api_key(self, key_id: str) -> RowDict | None:
        """Return an API key, its hashes left out."""
        return await self.row(_key_select().where(api_key.c.id == key_id))

    async def api_keys(
        self,
        *,
        owner_did: str | None = None,
        limit: int = 50,
        offset: int = 0,
        after_id: str | None = None,
    ) -> list[RowDict]:
        """Return API keys in the order of their ids, hashes left out."""
        return await self.listed(
            _key_select(), "id", after_id, limit=limit, offset=offset, owner_did=owner_did
        )

    # -- money and audit --------------------------------------------------------------------------

    async def balance(self, did: str) -> Balance:
        """Return an owner's wallet, and the rest of their held escrows as pending (money.md,
        Accounts)."""
        row = (await self.rows(_BALANCE, {"wallet": wallet_address(did), "payer": did}))[0]
        return Balance(int(row["balance"]), int(row["held"]))

    async def transactions(
        self,
        did: str,
        *,
        workflow_id: str | None = None,
        limit: int = 50,
        offset: int = 0,
        before_id: int | None = None,
    ) -> list[RowDict]:
        """Return the entries of an owner's wallet, newest first.

        Of a workflow that the owner pays, every entry: all of them touch its escrow, but only the
        hold and the refund touch the wallet.
        """
        # What is no id is that of no workflow.
        of_id = canonical_uuid(workflow_id or "") or str(uuid.UUID(int=0))
        own = (
            sql.select(account.c.id)
            .where(account.c.address == wallet_address(did))
            .scalar_subquery()
        )
        paid_from = (
            sql.select(escrow.c.account_id)
            .where(
                escrow.c.workflow_id == of_id,
                escrow.c.payer_did == did,
            )
            .scalar_subquery()
        )
        wallet = own if workflow_id is None else sql.func.coalesce(paid_from, own)
        # Two index scans, each stopped at the page's end; an entry is never in both.
        sides = []
        for is_of_side in (entry.c.debit_account_id == wallet, is_credited(wallet)):
            side = sql.select(entry).where(is_of_side)
            if workflow_id is not None:
                side = side.where(entry.c.workflow_id == of_id)
            if before_id is not None:
                side = side.where(entry.c.id < before_id)
            page = side.order_by(entry.c.id.desc()).limit(limit + offset).subquery()
            sides.append(sql.select(page))
        both = sql.union_all(*sides).subquery()
        query = sql.select(both).order_by(both.c.id.desc()).limit(limit).offset(offset)
        return await self.rows(query)

    async def audit(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        bytes_max: int = PAGE_BYTES_MAX,
        looked_at_max: int | None = None,
        party_did: str | None = None,
        caller: str = "",
        **wanted: Unpack[AuditFilter],
    ) -> RowPage:
        """Return audit rows (`id, body, hash`, …), newest first, as `audit_select` narrows them.

        Where no index finds those that match, a bounded number of entries is looked at: the page
        then has fewer rows than there are, perhaps none, and `looked_to`.

        Args:
            bytes_max: of the bodies: the page ends with the row that passes it.
            looked_at_max: entries that are looked at; None: as many as usual.
            party_did: whose entries alone are returned, as far as parties are indexed; None:
                everybody's.
            caller: who asks, by DID; such reads are searches, and take turns.
        """
        select = audit_select(wanted, party_did, looked_at_max)
        search = partial(self.searches.rows, caller=caller)
        read = self.rows if select.last_looked_at is None else search
        found = await self.page(
            select.rows, "id", is_newest_first=True, wide="body", limit=limit, offset=offset,
            bytes_max=bytes_max, read=read,
        )  # fmt: skip
        if select.last_looked_at is None or found.is_cut or len(found) == limit:
            return found
        last = await search(select.last_looked_at)
        looked_to = int(last[0]["id"]) if last and last[0]["id"] is not None else None
        return RowPage(found, is_cut=False, looked_to=looked_to)

    async def own_audit_ids(self, did: str, audit_ids: Collection[int]) -> set[int]:
        """Return those of these audit entries of which a caller is known to be a party."""
        query = sql.select(audit_party.c.audit_id).where(
            audit_party.c.party == did, audit_party.c.audit_id.in_(audit_ids)
        )
        return {int(row["audit_id"]) for row in await self.rows(query)} if audit_ids else set()

    async def listed(
        self,
        query: sql.Select[Any],
        key: str,
        after: object = None,
        *,
        limit: int,
        offset: int,
        is_newest_first: bool = False,
        **wanted: object,
    ) -> list[RowDict]:
        """Return a page of rows in the order of a column.

        Args:
            query: the list, without its order.
            key: the column by which it is ordered.
            after: the key of the last row of the previous page; None: the first page.
            limit: most rows.
            is_newest_first: the largest key comes first.
            wanted: by column, the value of the rows that are shown; None: any.
        """
        page = _page_select(query, key, after, is_newest_first, wanted)
        return await self.rows(page.limit(limit).offset(offset))

    async def page(
        self,
        query: sql.Select[Any],
        key: str,
        after: object = None,
        *,
        wide: str,
        limit: int,
        offset: int,
        bytes_max: int,
        is_newest_first: bool = False,
        read: Callable[[sql.Executable], Awaitable[list[RowDict]]] | None = None,
        **wanted: object,
    ) -> RowPage:
        """Return a page of rows that ends early, in the database, when it gets too large.

        Args:
            query, key, after, limit, is_newest_first, wanted: as of `listed`.
            wide: the column whose texts may be large.
            bytes_max: of the wide column: the page ends with the row that passes it.
            read: runs the query; None: as all reads.
        """
        narrowed = _page_select(query, key, after, is_newest_first, wanted)
        rows = narrowed.limit(limit).offset(offset).subquery()
        rows_order = rows.c[key].desc() if is_newest_first else rows.c[key]
        size = sql.func.octet_length(sql.cast(rows.c[wide], sql.Text))
        before = sql.func.sum(size).over(order_by=rows_order, rows=(None, -1))
        sized = sql.select(
            rows,
            sql.func.coalesce(before, 0).label("bytes_before"),
            sql.func.count().over().label("page_rows"),
        ).subquery()
        sized_order = sized.c[key].desc() if is_newest_first else sized.c[key]
        cut = sql.select(sized).where(sized.c.bytes_before < bytes_max)
        found = await (read or self.rows)(cut.order_by(sized_order))
        return RowPage.of(found)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _page_select(
    query: sql.Select[Any],
    key: str,
    after: object,
    is_newest_first: bool,
    wanted: Mapping[str, object],
) -> sql.Select[Any]:
    columns = query.selected_columns
    column, order = columns[key], columns[key].desc() if is_newest_first else columns[key]
    for name, value in wanted.items():
        if value is not None:
            query = query.where(columns[name] == value)
    if after is not None:
        query = query.where(column < after if is_newest_first else column > after)
    return query.order_by(order)


def _key_select() -> sql.Select[Any]:
    return sql.select(*(column for column in api_key.c if column.name not in _HASH_COLUMNS))


def is_credited(account_id: sql.ColumnElement[int]) -> sql.ColumnElement[bool]:
    """Return the condition of entries into an account, spelt as their partial index is.

    What comes into the fee account is not among them.
    """
    return sql.and_(
        entry.c.credit_account_id == account_id,
        entry.c.kind != sql.literal_column("'protocol_fee'"),
    )
