"""What must hold of a ledger at any time, asked of the database itself and of the chain's own
check.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import psycopg
import psycopg.rows

from core.trust.hashchain import GENESIS_HASH, find_break
from ledger.reputation import HISTORY, tallies_of_history, tally_of

_FAULTS = {
    "the balances do not sum to 0": "SELECT sum(balance) FROM account HAVING sum(balance) <> 0",
    "a balance is not the sum of its entries": """
        SELECT a.address, a.balance, e.total FROM account a LEFT JOIN (
            SELECT id, sum(amount) AS total FROM (
                SELECT credit_account_id AS id, amount FROM entry
                UNION ALL SELECT debit_account_id, -amount FROM entry) legs
            GROUP BY id) e ON e.id = a.id
        WHERE a.balance <> coalesce(e.total, 0)""",
    "a negative balance": "SELECT address FROM account WHERE balance < 0 AND kind <> 'external'",
    "a hold is not paid + fee + refund + rest": """
        SELECT s.workflow_id FROM escrow s JOIN account a ON a.id = s.account_id
        LEFT JOIN entry e ON e.debit_account_id = s.account_id
        GROUP BY s.workflow_id, s.amount, a.balance
        HAVING s.amount <> coalesce(sum(e.amount), 0) + a.balance""",
    "a released escrow is not empty": """
        SELECT s.workflow_id FROM escrow s JOIN account a ON a.id = s.account_id
        WHERE s.status = 'released' AND a.balance <> 0""",
    "an ended workflow holds money": """
        SELECT w.id FROM workflow w JOIN escrow s ON s.workflow_id = w.id
        WHERE (w.status IN ('pending', 'running')) <> (s.status = 'held')""",
    "a node is paid twice": """
        SELECT workflow_id, node_id FROM entry WHERE kind = 'node_payment'
        GROUP BY 1, 2 HAVING count(*) > 1""",
    "an entry belongs to no command": """
        SELECT id FROM entry WHERE command_id NOT IN (SELECT id FROM command)""",
    "the head is not that of the tables": """
        SELECT 1 FROM head WHERE entry_seq <> (SELECT count(*) FROM entry)
            OR audit_seq <> (SELECT count(*) FROM audit)
            OR hash <> (SELECT hash FROM audit ORDER BY id DESC LIMIT 1)""",
}


def connect(url: str, role: str | None = None) -> psycopg.Connection[Any]:
    """Open a connection whose statements are transactions of their own."""
    options = "-c search_path=callboard" + (f" -c role={role}" if role else "")
    return psycopg.connect(url, autocommit=True, options=options)


class Auditor:
    """Checks the books; the chain from where it was checked before."""

    def __init__(self, url: str) -> None:
        self.connection = connect(url)
        self._last_id = 0
        self._last_hash = GENESIS_HASH

    def check(self) -> None:
        """Raise AssertionError for the first fault found."""
        for fault, query in _FAULTS.items():
            rows = self.connection.execute(query).fetchmany(3)  # type: ignore[arg-type]
            assert not rows, f"{fault}: {rows}"
        cursor = self.connection.cursor(row_factory=psycopg.rows.dict_row)
        history = tallies_of_history(cursor.execute(HISTORY).fetchall())
        counted = cursor.execute("SELECT * FROM reputation").fetchall()
        assert {row["agent_did"]: tally_of(row) for row in counted} == history
        self.check_chain()

    def check_chain(self) -> None:
        """Raise AssertionError where the chain breaks, from where it was looked at before."""
        records = self.connection.execute(
            "SELECT convert_to(body, 'UTF8'), hash FROM audit WHERE id > %s ORDER BY id",
            (self._last_id,),
        ).fetchall()
        assert find_break(records, first_id=self._last_id + 1, prev_hash=self._last_hash) is None
        if records:
            self._last_id += len(records)
            self._last_hash = records[-1][1]

    def one(self, query: str, *parameters: object) -> Any:
        """Return the one value of the one row of a query."""
        row = self.connection.execute(query, parameters).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]

    def balance(self, did: str) -> int:
        """Return a wallet's balance, micro-credits."""
        return int(
            self.one(
                "SELECT coalesce(max(balance), 0) FROM account WHERE address = %s", f"wallet:{did}"
            )
        )

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def check_books(url: str) -> None:
    """Check a whole ledger once."""
    auditor = Auditor(url)
    try:
        auditor.check()
    finally:
        auditor.close()


class EntrySums:
    """What every account must hold by its entries, added up as they come."""

    def __init__(self) -> None:
        self.last_id = 0
        self.by_account: defaultdict[int, int] = defaultdict(int)

    def add_new(self, auditor: Auditor) -> set[int]:
        """Add what was entered since the last call; return the accounts it touched."""
        touched = set()
        rows = auditor.connection.execute(
            "SELECT id, debit_account_id, credit_account_id, amount FROM entry WHERE id > %s"
            " ORDER BY id",
            (self.last_id,),
        ).fetchall()
        for entry_id, debit, credit, amount in rows:
            assert entry_id == self.last_id + 1, "ids have no gap"
            self.last_id = entry_id
            self.by_account[debit] -= amount
            self.by_account[credit] += amount
            touched |= {debit, credit}
        return touched
