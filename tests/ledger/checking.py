"""What must hold of a ledger at any time, asked of the database itself and of the chain's own
check.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, LiteralString

import psycopg
import psycopg.rows

from core.canonical import canonical
from core.records.audit import LIFE_EVENTS
from core.trust.hashchain import GENESIS_HASH, record_hash
from ledger.features.books import BooksCheck, Disagreement
from ledger.features.reputation import HISTORY, tallies_of_history, tally_of

_WORLD_ID = 1
# One round trip: new entries, the accounts they touch and others, the sum, new audit records.
_NEWS = """
WITH news AS MATERIALIZED (
    SELECT id, debit_account_id AS debit, credit_account_id AS credit, amount FROM entry
    WHERE id > %(entry)s ORDER BY id)
SELECT 'entry', id, debit, credit, amount, NULL::text, NULL::bytea FROM news
UNION ALL SELECT 'account', id, balance, 0, 0, address, NULL FROM account
    WHERE id = ANY (ARRAY(SELECT debit FROM news UNION SELECT credit FROM news))
        OR address = ANY(%(addresses)s)
UNION ALL SELECT 'sum', 0, sum(balance)::bigint, 0, 0, '', NULL FROM account
UNION ALL (SELECT 'audit', 0, 0, 0, 0, body, hash FROM audit WHERE id > %(audit)s ORDER BY id)
"""
# Every event of the chain. The first entry, which no command made, is its own event.
_EVENTS: Final[LiteralString] = """
    SELECT a.id, a.actor_did, a.created_ms, a.workflow_id, e.number - 1 AS number,
        e.said ->> 'type' AS event_type, e.said ->> 'targetType' AS target_type,
        e.said ->> 'targetId' AS target_id, e.said -> 'payload' AS payload
    FROM (SELECT *, body::json AS said FROM callboard.audit) a,
        json_array_elements(coalesce(a.said #> '{payload,events}', json_build_array(
            json_build_object(
                'type', a.said -> 'eventType', 'targetType', a.said -> 'targetType',
                'targetId', a.said -> 'targetId', 'payload', a.said -> 'payload')
        ))) WITH ORDINALITY AS e(said, number)"""
EVENT_VIEW: Final[LiteralString] = f"CREATE TEMP VIEW event AS {_EVENTS}"
# What is checked again and again reads each record's text once: the chain only grows.
_EVENT_TABLE: Final[LiteralString] = f"""
    CREATE TEMP TABLE parsed AS {_EVENTS} LIMIT 0;
    CREATE INDEX ON parsed (target_id, id);
    CREATE INDEX ON parsed (id)"""
_NEW_EVENTS: Final[LiteralString] = f"""
    INSERT INTO parsed {_EVENTS} WHERE a.id > (SELECT coalesce(max(id), 0) FROM parsed)"""
_FAULTS = {
    "the balances do not sum to 0": "SELECT sum(balance) FROM account HAVING sum(balance) <> 0",
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
    "an auction's winner is paid another price": """
        SELECT n.workflow_id, n.name FROM node n JOIN auction a ON a.workflow_id = n.workflow_id
            AND a.node = n.name AND a.round = n.auction_round AND a.status = 'awarded'
        WHERE n.status = 'success' AND (n.agent_did, n.price_micro) <> (a.winner_did, a.price_micro)
    """,
    "a node is paid another amount than its price": """
        SELECT n.workflow_id, n.name FROM node n LEFT JOIN entry e
            ON e.workflow_id = n.workflow_id AND e.node_id = n.name
            AND e.kind IN ('node_payment', 'protocol_fee')
        WHERE n.status = 'success'
        GROUP BY n.workflow_id, n.name, n.price_micro
        HAVING n.price_micro <> coalesce(sum(e.amount), 0)""",
    "a node is paid twice": """
        SELECT workflow_id, node_id FROM entry WHERE kind = 'node_payment'
        GROUP BY 1, 2 HAVING count(*) > 1""",
    "a revoked agent is paid": """
        WITH said AS MATERIALIZED (
            SELECT id, event_type, target_id, payload ->> 'agentDid' AS paid_did,
                to_timestamp(created_ms / 1000.0) AS said_at,
                (payload ->> 'expiresAt')::timestamptz AS expires_at
            FROM parsed
            WHERE event_type IN ('payment.settled', 'agent.revoked', 'agent.unrevoked'))
        SELECT p.id FROM said p JOIN said r ON r.target_id = p.paid_did AND r.id < p.id
        WHERE p.event_type = 'payment.settled' AND r.event_type = 'agent.revoked'
            AND coalesce(r.expires_at > p.said_at, true)
            AND NOT EXISTS (
                SELECT 1 FROM said u WHERE u.event_type = 'agent.unrevoked'
                    AND u.target_id = r.target_id AND u.id BETWEEN r.id AND p.id)""",
    "an entry is not named by its audit entry": """
        SELECT id, audit_id FROM entry WHERE audit_id > 1  -- 1: made past the writer, by a test
        EXCEPT SELECT entry_id::bigint, id
        FROM parsed, json_array_elements_text(payload -> 'entryIds') AS entry_id""",
    "an audit entry's columns are not its body's": """
        SELECT a.id FROM audit a JOIN (
            SELECT id, array_agg(event_type) AS types,
                min(target_id) FILTER (WHERE target_type = 'workflow') AS workflow_id
            FROM parsed GROUP BY id) said ON said.id = a.id
        WHERE NOT (a.event_types @> said.types AND a.event_types <@ said.types)
            OR a.workflow_id::text IS DISTINCT FROM said.workflow_id""",
    "an event cannot be found": """
        SELECT id, number, event_type, target_type, target_id FROM parsed
        WHERE event_type <> ALL ('{"""
    + ",".join(sorted(LIFE_EVENTS))
    + """}')
        EXCEPT SELECT * FROM audit_event""",
    "an event is found that never was": """
        SELECT * FROM audit_event
        EXCEPT SELECT id, number, event_type, target_type, target_id FROM parsed""",
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
        self.url = url
        self.connection = connect(url)
        self.connection.execute(EVENT_VIEW)
        self.connection.execute(_EVENT_TABLE)
        self.last_id = 0
        self._last_hash = GENESIS_HASH

    def check(self) -> None:
        """Raise AssertionError for the first fault found."""
        self.connection.execute(_NEW_EVENTS)
        for fault, query in _FAULTS.items():
            rows = self.connection.execute(query).fetchmany(3)  # type: ignore[arg-type]
            assert not rows, f"{fault}: {rows}"
        cursor = self.connection.cursor(row_factory=psycopg.rows.dict_row)
        history = tallies_of_history(cursor.execute(HISTORY).fetchall())
        counted = cursor.execute("SELECT * FROM reputation").fetchall()
        assert {row["agent_did"]: tally_of(row) for row in counted} == history
        self.check_chain()
        self.replay()

    def check_chain(self) -> None:
        """Raise AssertionError where the chain breaks, from where it was looked at before."""
        records = self.connection.execute(
            "SELECT body, hash FROM audit WHERE id > %s ORDER BY id", (self.last_id,)
        ).fetchall()
        self.follow_chain(records)

    def follow_chain(self, records: Sequence[tuple[str, bytes]]) -> None:
        """Raise AssertionError where these records, the next ones, break the chain."""
        for body, hash_ in records:
            entry = json.loads(body)
            assert canonical(entry) == body.encode()
            assert hash_ == record_hash(body.encode())
            linked = (self.last_id + 1, "sha256:" + self._last_hash.hex())
            assert (entry["id"], entry["prevHash"]) == linked
            self.last_id, self._last_hash = entry["id"], hash_

    def replay(self) -> None:
        """Raise AssertionError unless all entries in order give every balance, none overdrawn."""
        replayed = Replay()
        entries = self.connection.execute(
            "SELECT id, debit_account_id, credit_account_id, amount FROM entry ORDER BY id"
        )
        for entry in entries:
            replayed.add(*entry)
        balances = self.connection.execute("SELECT id, balance FROM account").fetchall()
        for account_id, balance in balances:
            assert balance == replayed.by_account[account_id], account_id

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


async def wrong_row(check: BooksCheck) -> Disagreement | None:
    """Run a check to its end; return the row that it names."""
    found = [one async for one in check.pages()]
    assert all(one is None for one in found[:-1]), "the first wrong row ends a check"
    return found[-1]


class Replay:
    """Every entry from the first on, replayed in order as they come."""

    def __init__(self) -> None:
        self.last_id = 0
        self.by_account: defaultdict[int, int] = defaultdict(int)

    def add(self, entry_id: int, debit: int, credit: int, amount: int) -> None:
        """Replay the next entry: no account but the outside world may ever be overdrawn."""
        assert entry_id == self.last_id + 1, "ids have no gap"
        self.last_id = entry_id
        self.by_account[debit] -= amount
        self.by_account[credit] += amount
        assert self.by_account[debit] >= 0 or debit == _WORLD_ID, (entry_id, debit)

    def follow(self, auditor: Auditor, addresses: Iterable[str] = ()) -> dict[str, int]:
        """Replay what is new; return the balances of the accounts it touched and of these.

        Each is what its entries add up to, all balances together are 0, and the chain goes on.
        """
        rows = auditor.connection.execute(
            _NEWS, {"entry": self.last_id, "audit": auditor.last_id, "addresses": list(addresses)}
        ).fetchall()
        for kind, *entry in rows:
            if kind == "entry":
                self.add(*entry[:4])
        balances = {}
        for kind, account_id, balance, *_, address, _hash in rows:
            if kind == "account":
                assert balance == self.by_account[account_id], address
                balances[address] = balance
            elif kind == "sum":
                assert balance == 0, "the balances do not sum to 0"
        auditor.follow_chain([(body, hash_) for kind, *_, body, hash_ in rows if kind == "audit"])
        return balances


def rows_read(plan: dict[str, Any]) -> Counter[str]:
    """Return how many rows a plan has read of each table, those included that a filter removed.

    Args:
        plan: of `EXPLAIN (ANALYZE, FORMAT JSON)`.
    """
    found = Counter[str]()
    if "Relation Name" in plan:
        removed = plan.get("Rows Removed by Filter", 0) + plan.get(
            "Rows Removed by Index Recheck", 0
        )
        found[plan["Relation Name"]] += (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for below in plan.get("Plans", ()):
        found += rows_read(below)
    return found
