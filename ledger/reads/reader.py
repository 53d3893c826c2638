"""Reads committed rows directly from Postgres, so that a reader sees all acknowledged commands.

Reads are short transactions on a small pool, with a role that can only read. Rows are dicts by
column name, amounts in micro-credits (`…_micro`, `amount`, `balance`), times in Unix milliseconds
(`…_ms`). The API converts them to JSON. Reference: features.md (Workflows), money.md (Entries,
Audit chain).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, Unpack

import sqlalchemy as sql

from core.ids import canonical_uuid
from ledger.connections.pools import Pool
from ledger.reads.agent_pages import HEARD_AGENT, HIDDEN_AGENT, IS_REVOKED, agents_statement
from ledger.reads.audit_filter import AuditFilter, audit_select
from ledger.reads.expensive_reads import ExpensiveReads
from ledger.reads.prepared_reads import PreparedReads
from ledger.reads.search_reads import SearchReads
from ledger.reads.stored import (
    SPENT,
    Balance,
    RowDict,
    StoredWorkflow,
)
from ledger.schema import (
    READER_ROLE,
    agent,
    api_key,
    audit_party,
    command,
    workflow,
)
from ledger.writer.state_cache import wallet_address

__all__ = ["Balance", "LedgerReader", "RowDict", "RowPage", "StoredWorkflow"]

READ_TIMEOUT_S: Final = 5.0
_HASH_COLUMNS: Final = ("hash", "previous_hash")
# Spelled as in the partial indexes.
_IS_UNFINISHED: Final = workflow.c.completed_ms.is_(None)
# The default maximum bytes of a page.
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
# Finds a key by its current secret, and during the overlap of a rotation also by its previous
# secret.
_KEYS: Final = sql.text(f"""
    SELECT k.*, {IS_REVOKED.format(did="k.owner_did")} AS is_owner_revoked
    FROM callboard.api_key k
    WHERE k.hash = ANY (CAST(:hashes AS bytea[]))
        OR k.previous_hash = ANY (CAST(:hashes AS bytea[]))
        AND k.previous_ends_ms > extract(epoch FROM clock_timestamp()) * 1000
""")
_BALANCE: Final = sql.text("""
    SELECT (SELECT balance FROM callboard.account WHERE address = :wallet) AS balance, (
        SELECT coalesce(sum(a.balance), 0)
        FROM callboard.escrow e JOIN callboard.account a ON a.id = e.account_id
        WHERE e.payer_did = :payer AND e.status = 'held') AS held
""")
_ESCROW: Final = sql.text("""
    SELECT e.*, a.balance AS remaining_micro
    FROM callboard.escrow e JOIN callboard.account a ON a.id = e.account_id
    WHERE e.workflow_id = CAST(:id AS uuid)
""")
_WORKFLOWS: Final = sql.select(
    *(one for one in workflow.c if one.name not in ("spent_micro", "manifest")),
    sql.literal_column(SPENT, sql.BigInteger).label("spent_micro"),
)
_AGENT: Final = sql.select(*(one for one in agent.c if one.name != "signing_secret")).where(
    agent.c.did == sql.bindparam("did")
)


class RowPage(list[RowDict]):
    """A page of rows. `is_cut`: the page ended early because it reached its maximum size.

    `looked_to`: the id of the last row that was scanned, if the scan ended before the list did;
    None: the list was read to the end of the page.
    """

    def __init__(
        self, rows: Sequence[RowDict], *, is_cut: bool, looked_to: int | None = None
    ) -> None:
        super().__init__(rows)
        self.is_cut = is_cut
        self.looked_to = looked_to

    @classmethod
    def of(cls, found: list[RowDict]) -> RowPage:
        """Return the page for rows with the columns `page_rows` and `bytes_before`, and remove
        these columns."""
        row_count = 0
        for row in found:
            row_count = row.pop("page_rows")
            del row["bytes_before"]
        return cls(found, is_cut=row_count > len(found))


class LedgerReader(Pool):
    """Reads committed rows over a small pool of connections."""

    def __init__(self, url: str, *, pool_size: int = 5, timeout_s: float = READ_TIMEOUT_S) -> None:
        """Make the pool; connections are opened when first needed.

        Args:
            url: `postgresql://…` of a login that is a member of `ledger_reader`.
            timeout_s: how long a read waits for a connection, and then for the server.
        """
        super().__init__(url, READER_ROLE, "callboard-reader", size=pool_size, timeout_s=timeout_s)
        self.turns = ExpensiveReads()
        # Separate connections: pages may be large, and a look-up must not wait for one.
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
        """Return when the database replies."""
        await self.rows(sql.text("SELECT 1"))

    # -- workflows --------------------------------------------------------------------------------

    async def workflows(
        self,
        *,
        is_quarantined: bool | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        before_id: str | None = None,
        command_key: str | None = None,
        **page: Any,
    ) -> list[RowDict]:
        """Return workflow rows without nodes and manifest, newest first.

        Args:
            is_quarantined: True: only quarantined workflows; False: only workflows that are not
                quarantined; None: all.
            start_ms, end_ms: the time of creation, Unix milliseconds; the end is excluded.
            before_id: the last id of the previous page (keyset paging).
            command_key: only the workflow whose publish had this key.
            page: `limit`, `offset`, and the filters `payer_did` and `status`.
        """
        query = _WORKFLOWS
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
        return await self.listed(query, "id", before, is_newest_first=True, **page)

    async def _workflow_of(self, command_key: str) -> str | None:
        row = await self.row(sql.select(command.c.result).where(command.c.id == command_key))
        return None if row is None else (row["result"] or {}).get("workflowId")

    async def escrow(self, workflow_id: str) -> RowDict | None:
        """Return a workflow's escrow with its balance (`remaining_micro`), None without one."""
        return await self.row(_ESCROW, {"id": workflow_id})

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
        """Return agent rows, like those of `heard_agent`, in the order of their DIDs.

        Args:
            viewer: the DID that may see them, "" for a caller without a DID; None: an
                administrator.
            bytes_max: maximum bytes of cards: the page ends with the row that exceeds it.
            asked: filters by `capability_id`, `owner_did`, `status`, `name`, `author`, `model`
                (exact values of the card's metadata) or `after_did`; None: no filter.
        """
        values = {one: wanted for one, wanted in asked.items() if wanted is not None}
        found = await self.records.rows(
            agents_statement(frozenset(values)),
            {**values, "viewer": viewer, "limit": limit, "offset": offset, "bytes_max": bytes_max},
        )
        return RowPage.of(found)

    async def agent(self, did: str) -> RowDict | None:
        """Return an agent's row without its signing secret, None if there is none."""
        return await self.row(_AGENT, {"did": did})

    async def heard_agent(self, did: str) -> RowDict | None:
        """Return an agent's row with its heartbeats and probes (`live_of`), and `is_revoked`.

        It has no signing secret. None: there is no such agent.
        """
        rows = await self.lookups.rows(HEARD_AGENT, {"did": did})
        return rows[0] if rows else None

    async def is_hidden(self, did: str, viewer: str | None) -> bool:
        """Say whether an agent is in a private subnet that the viewer may not see ("": a viewer
        without a DID)."""
        rows = await self.lookups.rows(HIDDEN_AGENT, {"did": did, "viewer": viewer})
        return bool(rows[0]["is_hidden"])

    async def api_keys_by_hashes(self, hashes: Sequence[bytes]) -> dict[bytes, RowDict]:
        """Return the rows of API keys by the SHA-256 of their secrets, including revoked keys.

        `is_owner_revoked`: whether the key's owner is revoked now. A rotated key is also found by
        its previous hash until `previous_ends_ms`.
        """
        asked = set(hashes)
        found: dict[bytes, RowDict] = {}
        for row in await self.rows(_KEYS, {"hashes": list(asked)}):
            for digest in (row["hash"], row["previous_hash"]):
                if digest is not None and bytes(digest) in asked:
                    found[bytes(digest)] = row
        return found

    async def api_key(self, key_id: str) -> RowDict | None:
        """Return an API key without its hashes, None if there is none."""
        return await self.row(_key_select().where(api_key.c.id == key_id))

    async def api_keys(self, *, after_id: str | None = None, **page: Any) -> list[RowDict]:
        """Return API keys without their hashes, in the order of their ids (`listed`)."""
        return await self.listed(_key_select(), "id", after_id, **page)

    # -- money and audit --------------------------------------------------------------------------

    async def balance(self, did: str) -> Balance:
        """Return an owner's wallet balance, and the sum of its held escrows as pending (money.md,
        Accounts)."""
        row = (await self.rows(_BALANCE, {"wallet": wallet_address(did), "payer": did}))[0]
        return Balance(row["balance"] or 0, int(row["held"]))

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
        """Return audit rows (`id, body, hash`, …) that match a filter (`audit_select`), newest
        first.

        If no index finds the matching entries, a bounded number of entries is scanned. The page may
        then have fewer rows than match, or none, and has `looked_to`.

        Args:
            bytes_max: maximum bytes of bodies: the page ends with the row that exceeds it.
            looked_at_max: maximum entries that are scanned; None: the default.
            party_did: only entries to which this DID is a party; None: all.
            caller: DID of the caller. A read that scans is a search, and in searches callers take
                turns.
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
        """Return the given ids of audit entries that have the DID as a party."""
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
        limit: int = 50,
        offset: int = 0,
        is_newest_first: bool = False,
        **wanted: object,
    ) -> list[RowDict]:
        """Return a page of rows in the order of a column.

        Args:
            query: the list, without its order.
            key: the column that gives the order.
            after: the key of the last row of the previous page; None: the first page.
            limit: maximum rows.
            is_newest_first: descending order.
            wanted: by column, the value that rows must have; None: any.
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
        limit: int = 50,
        offset: int = 0,
        bytes_max: int = PAGE_BYTES_MAX,
        is_newest_first: bool = False,
        read: Callable[[sql.Executable], Awaitable[list[RowDict]]] | None = None,
        **wanted: object,
    ) -> RowPage:
        """Return a page of rows. The database ends the page when the page gets too large.

        Args:
            query, key, after, limit, is_newest_first, wanted: as for `listed`.
            wide: the column whose values may be large.
            bytes_max: maximum bytes of the wide column: the page ends with the row that exceeds it.
            read: runs the query; None: `self.rows`.
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
