"""Checks the books: recomputes balances, escrows, stakes and invoices from the entries.

The ledger continues to commit during the check. One SQL statement reads a page, so all rows of the
page belong to one snapshot. The sums of accounts include the entries up to that snapshot. Only sums
other than 0 are stored in memory. Reference: money.md (Checking the books).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from core.market.invoice import BPS, INVOICE_FEE_BPS
from core.money import MICRO_PER_CENT
from ledger.features.accounts import REFUND_KINDS
from ledger.reads.stored import RowDict
from ledger.schema import typed

# Entries that are summed per statement; also the maximum number of rows per page.
PAGE_ROWS: Final = 5_000
# The net change of each account by the entries after an id, and a page of accounts.
_ACCOUNTS: Final = sql.text("""
WITH part AS MATERIALIZED (
    SELECT id, debit_account_id, credit_account_id, amount FROM callboard.entry
    WHERE id > :entries ORDER BY id LIMIT :entries_most
), leg AS (
    SELECT debit_account_id AS id, -amount AS micro FROM part
    UNION ALL SELECT credit_account_id, amount FROM part
)
SELECT NULL AS key, id, sum(micro)::bigint AS balance, (SELECT max(id) FROM part) AS entries
FROM leg GROUP BY id
UNION ALL (
    SELECT address, id, balance, NULL FROM callboard.account
    WHERE id > :after ORDER BY id LIMIT :most)
""").bindparams(*typed(bigint="entries entries_most after"))
# The stored value is column `x`, its recomputed value `expected_x`. The page size is part of the
# text: with a parameter Postgres would plan for a tenth of the table, and read all joined rows.
_ESCROWS: Final = """
SELECT s.workflow_id::text AS key, s.amount, coalesce(held.micro, 0)::bigint AS expected_amount,
    s.payer_did, w.payer_did AS expected_payer_did, s.status,
    CASE WHEN w.completed_ms IS NULL THEN 'held' ELSE 'released' END AS expected_status,
    a.balance AS rest, CASE WHEN s.status = 'released' THEN 0 ELSE a.balance END AS expected_rest
FROM callboard.escrow s
    LEFT JOIN callboard.account a ON a.id = s.account_id
    LEFT JOIN callboard.workflow w ON w.id = s.workflow_id
    CROSS JOIN LATERAL (
        SELECT sum(e.amount) AS micro FROM callboard.entry e
        WHERE e.credit_account_id = s.account_id AND e.kind <> 'protocol_fee') held
WHERE s.workflow_id > CAST(:after AS uuid) ORDER BY s.workflow_id LIMIT {most}
"""
# Slashes and refunds reduce a stake but not its shares, and reduce the locked part but not the
# locks of nodes. So `lost` (the slashed and refunded amount) is read, but only if shares or locks
# exceed the stake. A displaced bid keeps its row but locks nothing, so the locks of bids are an
# upper bound.
_STAKES: Final = """
WITH open AS MATERIALIZED (SELECT id FROM callboard.workflow WHERE completed_ms IS NULL),
nodes AS (
    SELECT n.agent_did, sum(n.stake_micro)::bigint AS micro
    FROM open JOIN callboard.node n ON n.workflow_id = open.id
    WHERE n.stake_micro > 0 GROUP BY n.agent_did
), bids AS (
    SELECT b.agent_did, sum(b.stake_locked_micro)::bigint AS micro
    FROM open JOIN callboard.auction a ON a.workflow_id = open.id AND a.status = 'open'
        JOIN callboard.bid b USING (workflow_id, node, round)
    WHERE b.stake_locked_micro > 0 GROUP BY b.agent_did
), page AS (
    SELECT s.*, f.address AS free_address, l.address AS locked_address, l.balance AS locked,
        f.balance + l.balance AS total, coalesce(nodes.micro, 0) AS of_nodes,
        coalesce(bids.micro, 0) AS of_bids, (
            SELECT coalesce(sum(h.micro), 0)::bigint FROM callboard.stake_share h
            WHERE h.agent_did = s.agent_did) AS shares
    FROM callboard.stake s
        JOIN callboard.account f ON f.id = s.free_account_id
        JOIN callboard.account l ON l.id = s.locked_account_id
        LEFT JOIN nodes ON nodes.agent_did = s.agent_did
        LEFT JOIN bids ON bids.agent_did = s.agent_did
    WHERE s.agent_did > :after ORDER BY s.agent_did LIMIT {most}
)
SELECT agent_did AS key, free_address, 'stake:' || agent_did AS expected_free_address,
    locked_address, 'stake_locked:' || agent_did AS expected_locked_address,
    shares, least(greatest(shares, total), total + lost) AS expected_shares,
    locked, least(greatest(locked, of_nodes - lost), of_nodes + of_bids) AS expected_locked
FROM page CROSS JOIN LATERAL (
    SELECT CASE WHEN shares > total OR of_nodes > locked THEN (
        SELECT coalesce(sum(e.amount), 0)::bigint FROM callboard.entry e
        WHERE e.debit_account_id IN (free_account_id, locked_account_id)
            AND e.kind IN ('stake_slash', 'stake_refund')) ELSE 0 END AS lost) losses
ORDER BY agent_did
"""
# A line is a payment with its fee (the entry after the payment), or a refund. `line` is the first
# wrong line: its entry and its amount.
_INVOICES: Final = f"""
SELECT i.id::text AS key, wrong[1:2] AS line, wrong[1:1] || wrong[3:3] AS expected_line,
    subtotal_micro, greatest(lines.micro, 0) AS expected_subtotal_micro,
    subtotal_cents,
    (subtotal_micro + {MICRO_PER_CENT // 2}) / {MICRO_PER_CENT} AS expected_subtotal_cents,
    protocol_fee_cents,
    (subtotal_cents * {INVOICE_FEE_BPS} + {BPS // 2}) / {BPS} AS expected_protocol_fee_cents
FROM callboard.invoice i CROSS JOIN LATERAL (
    SELECT coalesce(sum(CASE WHEN is_refund THEN -micro ELSE micro END), 0)::bigint AS micro,
        min(ARRAY[entry_id, amount_micro, micro]) FILTER (WHERE amount_micro <> micro) AS wrong
    FROM (
        SELECT o.entry_id, o.amount_micro, coalesce(e.amount + coalesce(fee.amount, 0), 0) AS micro,
            coalesce(e.kind IN {REFUND_KINDS}, false) AS is_refund
        FROM callboard.invoice_line o LEFT JOIN callboard.entry e ON e.id = o.entry_id
            LEFT JOIN callboard.entry fee ON fee.id = o.entry_id + 1 AND e.kind = 'node_payment'
                AND fee.kind = 'protocol_fee' AND fee.audit_id = e.audit_id
                AND (fee.workflow_id, fee.node_id) = (e.workflow_id, e.node_id)
        WHERE o.invoice_id = i.id) line) lines
WHERE i.id > CAST(:after AS uuid) ORDER BY i.id LIMIT {{most}}
"""
_NIL: Final = "00000000-0000-0000-0000-000000000000"
# By table: the statement ("" stands for `_ACCOUNTS`), a key below all keys, and the rows per page.
# Pages of invoices are small, because an invoice has up to 5,000 lines.
_TABLES: Final[dict[str, tuple[str, Any, int]]] = {
    "account": ("", 0, 2_000),
    "escrow": (_ESCROWS, _NIL, 500),
    "stake": (_STAKES, "", 500),
    "invoice": (_INVOICES, _NIL, 20),
}


class Disagreement(NamedTuple):
    """A row that disagrees with the entries. `row`: its key; `got`: the stored value."""

    table: str
    row: str
    column: str
    got: str
    expected: str


class BooksCheck:
    """One check of all books.

    Args:
        read: runs one statement as a transaction and returns its rows.
    """

    def __init__(
        self, read: Callable[[sql.Executable, Mapping[str, Any]], Awaitable[list[RowDict]]]
    ) -> None:
        self._read = read
        self.page_rows = PAGE_ROWS
        self._sums: dict[int, int] = {}
        # The id of the last entry that was read, and the number of compared rows by table.
        self.entries = 0
        self.rows: dict[str, int] = {}

    async def pages(self) -> AsyncGenerator[Disagreement | None, None]:
        """Check page by page. Yield None after each page. Yield the first disagreement, and end.

        Steps: (1) sum the entries by account, (2) compare the accounts, (3) compare each other
        table in the order of its keys, (4) check that every account with a sum exists.

        Raises:
            ServiceError: a page cannot be read.
        """
        before = -1
        while before < self.entries:  # (1)
            before = self.entries
            await self._read_accounts(0, 0, entries_most=self.page_rows)
            yield None
        unseen = set(self._sums)
        for table, (text, after, most_rows) in _TABLES.items():
            most, self.rows[table], is_last = min(most_rows, self.page_rows), 0, False
            statement = sql.text(text.format(most=most))
            while not is_last:
                if not text:  # (2)
                    rows = await self._read_accounts(after, most)
                    unseen.difference_update(row["id"] for row in rows)
                else:  # (3)
                    rows = await self._read(statement, {"after": after})
                for row in rows:
                    if (found := _wrong_column(table, row)) is not None:
                        yield found
                        return
                self.rows[table] += len(rows)
                is_last = len(rows) < most
                after = rows[-1]["key" if text else "id"] if rows else after
                yield None
        for missing in sorted(unseen)[:1]:  # (4)
            yield Disagreement("account", str(missing), "id", "no row", str(missing))

    async def _read_accounts(
        self, after: int, most: int, *, entries_most: int | None = None
    ) -> list[RowDict]:
        """Return a page of accounts, each with `expected_balance`: the sum of its entries in the
        same snapshot."""
        values = {"entries": self.entries, "entries_most": entries_most}
        found = await self._read(_ACCOUNTS, {**values, "after": after, "most": most})
        for moved in found:
            if moved["key"] is None:
                self.entries, account = moved["entries"], moved["id"]
                self._sums[account] = self._sums.get(account, 0) + moved["balance"]
                if not self._sums[account]:
                    del self._sums[account]
        return [
            {**row, "expected_balance": self._sums.get(row["id"], 0)}
            for row in found
            if row["key"] is not None
        ]


def _wrong_column(table: str, row: RowDict) -> Disagreement | None:
    """Return the first column of a row that differs from its expected value."""
    for name, expected in row.items():
        column = name.removeprefix("expected_")
        if column != name and row[column] != expected:
            return Disagreement(table, row["key"], column, str(row[column]), str(expected))
    return None
