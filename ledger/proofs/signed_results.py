"""Results that their nodes have succeeded with, and the signatures of their agents over them.

Nothing is stored for it: the attempt row has the signature. Reference: features.md (Signed
results).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.accounts.agent_money import IS_OWNERS
from ledger.reads.reader import LedgerReader, RowDict

# Whether an attempt `t` is the viewer's: its agent is the viewer, or the viewer's.
IS_VIEWERS: Final = f"""(t.agent_did = :viewer OR EXISTS (
    SELECT FROM callboard.agent a
    WHERE a.did = t.agent_did AND a.owner_did = :viewer AND {IS_OWNERS}))"""
_IS_WORKER: Final = sql.text(
    "SELECT 1 FROM callboard.attempt t"
    f" WHERE t.workflow_id = CAST(:workflow_id AS uuid) AND {IS_VIEWERS} LIMIT 1"
)
_RESULTS: Final = sql.text(
    f"""
    SELECT t.id, t.node AS node_id, t.attempt, t.agent_did, t.output_hash AS result_hash,
        t.signature, t.signed_key AS public_key, t.completed_ms
    FROM callboard.node n
    JOIN callboard.attempt t ON t.workflow_id = n.workflow_id AND t.node = n.name
        AND t.kind = 'primary' AND t.attempt = n.attempt AND t.outcome = 'success'
    WHERE n.workflow_id = CAST(:workflow_id AS uuid) AND n.status = 'success'
        AND n.name = coalesce(:node, n.name) AND (:is_all OR t.signature IS NOT NULL)
        AND (:viewer IS NULL OR {IS_VIEWERS}) AND t.id > CAST(:after AS bigint)
    ORDER BY t.id LIMIT :limit OFFSET :offset
    """
).bindparams(sql.bindparam("viewer", type_=sql.Text), sql.bindparam("node", type_=sql.Text))


async def is_worker(reader: LedgerReader, workflow_id: str, viewer: str) -> bool:
    """Say whether a DID, or an agent of it, has ended an attempt of a workflow."""
    values = {"workflow_id": workflow_id, "viewer": viewer}
    return bool(await reader.rows(_IS_WORKER, values))


async def result_rows(
    reader: LedgerReader,
    workflow_id: str,
    viewer: str | None,
    *,
    node: str | None = None,
    is_all: bool = True,
    after: int = 0,
    **page: int,
) -> list[RowDict]:
    """Return the results of a workflow's nodes that have succeeded, as they arrived.

    Args:
        workflow_id: in its usual spelling.
        viewer: the DID whose agents' results are returned; None: all agents'.
        node: only the result of this node.
        is_all: also those that are not signed.
        after: only attempts with larger ids.
        page: `limit` and `offset`.
    """
    asked = {"workflow_id": workflow_id, "viewer": viewer, "node": node, "is_all": is_all}
    return await reader.rows(_RESULTS, {**asked, "after": after, **page})
