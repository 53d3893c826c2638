"""The writer of before migration 0003: it commits the same plans by the frozen `commit_batch`.

What stands here is how that code called it, from the row's names of then; it does not follow what
is described now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

import orjson
from psycopg.types.json import Json

from ledger.tables import history_tables, market_tables, money_tables, work_tables
from ledger.tables.table import Row
from ledger.tables.writes import Write
from ledger.writer.batch import Batch
from ledger.writer.store import LedgerStore

_COMMIT: Final = (
    "SELECT callboard.commit_batch(%s::bigint, %s::json, %s::json, %s::json, %s::json, %s::json,"
    " %s::json, %s::json, %s::json, %s::text, %s::json, %s::uuid[], %s::json, %s::json, %s::json,"
    " %s::bigint)"
)
_REGISTRY: Final = {
    "owners": work_tables.OWNERS,
    "agents": market_tables.AGENTS,
    "deregistered": market_tables.DEREGISTERED,
    "revocations": market_tables.REVOCATIONS,
    "unrevocations": market_tables.UNREVOCATIONS,
    "halts": work_tables.HALTS,
    "keys": market_tables.KEYS,
}
_MARKET: Final = {
    "prices": market_tables.PRICES,
    "stakes": money_tables.STAKES,
    "stake_shares": money_tables.STAKE_SHARES,
    "auctions": work_tables.AUCTIONS,
    "closed_auctions": work_tables.CLOSED_AUCTIONS,
    "bids": work_tables.BIDS,
    "quotas": market_tables.QUOTAS,
    "invoices": money_tables.INVOICES,
    "settled_invoices": money_tables.SETTLED_INVOICES,
    "disputes": market_tables.DISPUTES,
    "resolved_disputes": market_tables.RESOLVED_DISPUTES,
    "ended_locks": work_tables.ENDED_LOCKS,
    "feedback": market_tables.FEEDBACK_GIVEN,
    "corrections": market_tables.CORRECTIONS,
}


class FirstWriter(LedgerStore):
    """A store that commits as the code of before did."""

    def _statement(self, batch: Batch) -> tuple[LiteralString, Sequence[Any]]:
        return _COMMIT, first_parameters(batch)


def first_parameters(batch: Batch) -> tuple[Any, ...]:
    """Return the parameters of `callboard.commit_batch`, in its order."""
    return (
        batch.cache.head.epoch,
        _rows(batch, money_tables.ACCOUNTS),
        _rows(batch, history_tables.COMMANDS),
        _rows(batch, work_tables.WORKFLOWS),
        _rows(batch, work_tables.WORKFLOW_CHANGES),
        _rows(batch, work_tables.NODES),
        _rows(batch, work_tables.ATTEMPTS),
        _rows(batch, money_tables.ESCROWS),
        _json([_entry(row) for row in batch.rows(money_tables.ENTRIES)]),
        "\n".join(map(_line, batch.rows(history_tables.AUDIT_ENTRIES))) or None,
        _rows(batch, history_tables.AUDIT_EVENTS),
        [row["workflow_id"] for row in batch.rows(money_tables.RELEASES)] or None,
        _json(_registry(batch)),
        _json(_market(batch)),
        _rows(batch, market_tables.COUNTS),
        batch.now_ms,
    )


def _registry(batch: Batch) -> dict[str, Any]:
    rows: dict[str, Any] = _present(batch, _REGISTRY)
    if claims := batch.rows(work_tables.CLAIMS):
        rows["claims"] = [
            {"from_owner": row["from_owner"], "to_owner": row["owner"]} for row in claims
        ]
    if revoked := batch.rows(market_tables.REVOKED_KEYS):
        rows["revoked"] = [row["id"] for row in revoked]
    if batch.is_directory_changed:
        rows["notice"] = str(batch.cache.head.audit_seq)
    return rows


def _market(batch: Batch) -> dict[str, Any]:
    rows = _present(batch, _MARKET)
    if lines := batch.rows(money_tables.INVOICE_LINES):
        rows["invoice_lines"] = [
            {
                "invoice_id": lines[0]["invoice_id"],
                "entry_ids": [line["entry_id"] for line in lines],
                "amounts_micro": [line["amount_micro"] for line in lines],
            }
        ]
    return rows


def _present(batch: Batch, writes: Mapping[str, Write]) -> dict[str, Any]:
    return {name: _hexed(rows) for name, write in writes.items() if (rows := batch.rows(write))}


def _entry(row: Row) -> Row:
    return {**row, "debit": row["debit_account_id"], "credit": row["credit_account_id"]}


def _line(row: Row) -> str:
    types = ",".join(row["event_types"])
    workflow_id = row["workflow_id"] or ""
    body = row["body"].decode()
    columns = (str(row["id"]), types, row["actor_did"], workflow_id, _hex(row["hash"]), body)
    return "\t".join(columns)


def _rows(batch: Batch, write: Write) -> Json | None:
    return _json(_hexed(batch.rows(write)))


def _hexed(rows: list[Row]) -> list[Row]:
    """Return rows with bytes as the function of then decoded them."""
    named = {"request_hash", "hash", "signing_secret"}
    return [
        {name: _hex(value) if name in named and value else value for name, value in row.items()}
        for row in rows
    ]


def _hex(text: str) -> str:
    return text.removeprefix("\\x")


def _json(rows: list[Row] | dict[str, Any]) -> Json | None:
    return Json(rows, dumps=orjson.dumps) if rows else None
