"""The result of one node by itself, for records that have no room for it.

Seen by those who see it in the record: the payer, administrators, and the node's own agent.
Decision messages-and-large-values.
"""

from __future__ import annotations

from core.records.api.workflows import NODE_RESULT
from core.workflow.events import BlobRef
from ledger.workflows.result_reads import result_row
from serve_app.http.calls import Call, Operations, Reply, not_found

OPERATIONS = Operations("workflows")


@OPERATIONS.add("GET", "/v1/workflows/{workflow_id}/nodes/{node}/result", reply=NODE_RESULT)
async def get_result(call: Call) -> Reply:
    """Read the result of one node."""
    workflow_id, node = call.path_values["workflow_id"], call.path_values["node"]
    unknown = not_found(f"a result of {node!r} in the workflow {workflow_id}")
    row = await result_row(call.services.reader, workflow_id, node)
    if row is None or not call.may((row["payer_did"], row["agent_did"])):
        raise unknown
    if row["result_json"] is not None:
        return Reply(row["result_json"].encode())
    if row["result_ref"] is None:
        raise unknown
    ref = BlobRef.from_json(row["result_ref"])
    return Reply((await call.services.gateway.blobs.texts([ref]))[ref.hash])
