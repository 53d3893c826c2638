"""Limits the size of a workflow's record: results beyond the limit are replaced by references.

The ledger stores the bytes that a reference names. This module only changes rows.
Decision messages-and-large-values.
"""

from __future__ import annotations

from typing import Any, Final

from core.canonical import hash_bytes
from core.json_text import write_json
from core.workflow.events import BlobRef
from ledger.reads.stored import RowDict, StoredWorkflow

# The assumed size of a node's other columns: names, times, ids, and the reference itself.
_NODE_BYTES: Final = 1_000


def bound_results(stored: StoredWorkflow, bytes_max: int) -> list[tuple[RowDict, BlobRef]]:
    """Keep the results of the first nodes that fit; replace all later results by references.

    Args:
        stored: the workflow. The rows of its nodes are modified.
        bytes_max: the size limit of the whole record as JSON.

    Returns: the nodes whose stored large results fit, each with the reference to resolve.
    """
    left = bytes_max - _size(stored.row.get("manifest")) - 2 * _size(stored.row.get("intent"))
    for node in stored.nodes:
        left -= _NODE_BYTES + _size(node["error"])
    for node in stored.nodes:
        # An agent decides how large its metrics are, so they may not fit.
        left = _clear_if_too_large(node, "metrics", left)
        left = _clear_if_too_large(node, "selection_json", left)
    resolved: list[tuple[RowDict, BlobRef]] = []
    for node in stored.nodes:
        text, ref = node["result_json"], node["result_ref"]
        if text is None and ref is None:
            continue
        size = _size(text) if text is not None else BlobRef.from_json(ref).size
        # After the first result that does not fit, no result is kept, because the query of the rows
        # stops at the same result (`workflow_records` in ledger/features/workflow_reads.py).
        left = left - size if size <= left else -1
        if left >= 0 and text is None:
            resolved.append((node, BlobRef.from_json(ref)))
        elif left < 0 and text is not None:
            node["result_json"], node["result_ref"] = None, _build_ref(text).to_json()
    return resolved


def _clear_if_too_large(node: RowDict, column: str, left: int) -> int:
    """Clear a column that does not fit; return how many bytes are left."""
    size = _size(node[column])
    if size <= left:
        return left - size
    node[column] = None
    return left


def _build_ref(text: str) -> BlobRef:
    body = text.encode()
    return BlobRef(hash_bytes(body), len(body))


def _size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    return len(write_json(value))
