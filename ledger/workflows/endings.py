"""Which workflows have ended: what a wait looks at, without reading their nodes and results.

Reads like those of `reader.py`, over the same pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader
from ledger.schema import workflow
from ledger.workflows.workflow_statements import IDS

_ENDED: Final = sql.select(workflow.c.id, workflow.c.completed_ms).where(workflow.c.id == IDS)


async def have_ended(reader: LedgerReader, ids: Sequence[str]) -> list[bool]:
    """Return for each workflow whether it has ended, or does not exist: one statement for all.

    Args:
        ids: of workflows, in their usual spelling.
    """
    rows = await reader.rows(_ENDED, {"ids": list(set(ids))})
    running = {str(row["id"]) for row in rows if row["completed_ms"] is None}
    return [workflow_id not in running for workflow_id in ids]
