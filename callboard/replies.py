"""The record types that requests return, named as the schemas in the service's OpenAPI document.

`core/records/api` declares the records, and the service generates its OpenAPI document from them.
Each `*` imports all records of a module. Reference: http.md (Conventions).
"""

from __future__ import annotations

from callboard.errors import STILL_RUNNING, StillRunning, WorkflowFailed
from core.records.api.agents import *
from core.records.api.identity import *
from core.records.api.kinds import Credits as Credits
from core.records.api.market import *
from core.records.api.operators import *
from core.records.api.peers import *
from core.records.api.record import *
from core.records.api.review import *
from core.records.api.triggers import *
from core.records.api.trust import *
from core.records.api.workflows import *
from core.records.api.workflows import FINISHED as FINISHED
from core.records.api.workflows import Workflow as Workflow


def successful(record: Workflow) -> Workflow:
    """Return the record if the workflow has succeeded.

    Raises:
        StillRunning: the workflow has not ended.
        WorkflowFailed: the workflow ended without success.
    """
    if record.status == "success":
        return record
    if not record.is_finished:
        waiting = f"workflow {record.id} is {record.status}"
        raise StillRunning(STILL_RUNNING, 200, waiting)
    failed = {name: node.error for name, node in record.nodes.items() if node.error}
    # Prefer a node whose own work failed to a node that failed because of another node.
    first = next((n for n, e in failed.items() if e.get("code") != "UPSTREAM_FAILED"), None)
    error = record.error or (failed[first] if first is not None else {})
    code = str(error.get("code") or record.status.upper())
    reason = error.get("message") or error.get("error") or record.status
    where = "" if first is None else f" at node {first}"
    detail = f"workflow {record.id} ended as {record.status}{where}: {reason}"
    raise WorkflowFailed(code, 200, detail, record)
