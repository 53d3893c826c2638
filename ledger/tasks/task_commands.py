"""A task that its payer has settled.

Plain values, as `ledger/commands.py` says.
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand


class SettleTask(AuthorizedCommand, frozen=True, kw_only=True):
    """Say that a payer has settled a task that was paid; no money moves.

    Its key is made of the workflow, so that it happens once. What was paid, the entries of its
    payments say. Result: {}. Rejections: KEY_REUSED.
    """

    request_hash: bytes
    workflow_id: str
    task_id: str


def settle_task_key(workflow_id: str) -> str:
    """Return the key under which a workflow's task is settled, once."""
    return f"settle_task:{workflow_id}"
