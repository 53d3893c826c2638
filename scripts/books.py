"""What must be true of the books whatever was killed: queries that find what is wrong.

Each finds no row in a ledger that is right, in the schema `callboard`. Asked by the fault tests and
by `scripts/cluster_demo`. money.md.
"""

from __future__ import annotations

from typing import LiteralString

CHECKS: dict[str, LiteralString] = {
    "the sum of all balances is not 0": "SELECT sum(balance) FROM account HAVING sum(balance) <> 0",
    "a balance is not the sum of its entries": """
        SELECT a.address, a.balance, coalesce(e.total, 0) FROM account a LEFT JOIN (
            SELECT id, sum(amount) AS total FROM (
                SELECT credit_account_id AS id, amount FROM entry
                UNION ALL SELECT debit_account_id, -amount FROM entry) moves GROUP BY id
        ) e ON e.id = a.id WHERE a.balance <> coalesce(e.total, 0)""",
    "an escrow is not paid + fee + refund": """
        SELECT s.workflow_id FROM escrow s LEFT JOIN entry e
            ON e.workflow_id = s.workflow_id AND e.debit_account_id = s.account_id
        WHERE s.status = 'released' GROUP BY s.workflow_id, s.amount
        HAVING s.amount <> coalesce(sum(e.amount), 0)""",
    "a finished workflow still holds money": """
        SELECT w.id FROM workflow w JOIN escrow s ON s.workflow_id = w.id
        WHERE w.status NOT IN ('pending', 'running') AND s.status <> 'released'""",
    "a node that succeeded was not paid once": """
        SELECT n.workflow_id, n.name, count(e.id) FROM node n LEFT JOIN entry e
            ON e.workflow_id = n.workflow_id AND e.node_id = n.name AND e.kind = 'node_payment'
        WHERE n.status = 'success' AND n.cost_micro > 0
        GROUP BY n.workflow_id, n.name HAVING count(e.id) <> 1""",
    "a node was paid that did not succeed": """
        SELECT e.workflow_id, e.node_id FROM entry e JOIN node n
            ON n.workflow_id = e.workflow_id AND n.name = e.node_id
        WHERE e.kind = 'node_payment' AND n.status <> 'success'""",
    "a node that succeeded has not one successful attempt": """
        SELECT n.workflow_id, n.name FROM node n LEFT JOIN attempt a
            ON a.workflow_id = n.workflow_id AND a.node = n.name
            AND a.outcome = 'success' AND a.kind = 'primary'
        WHERE n.status = 'success' GROUP BY 1, 2 HAVING count(a.attempt) <> 1""",
    "an audit record does not continue its predecessor": """
        SELECT id FROM (SELECT id, body::json ->> 'prevHash' AS prev,
            lag(hash) OVER (ORDER BY id) AS before, lag(id) OVER (ORDER BY id) AS before_id
            FROM audit) chain
        WHERE before IS NOT NULL
            AND (prev <> 'sha256:' || encode(before, 'hex') OR id <> before_id + 1)""",
}
