"""Requests about trust, as data like those of `calls.py`: who is revoked, which keys the
deployment signs with, proofs of the audit log, signed results and receipts.

Reference: features.md (Revocation, Signed results, Receipts), money.md (Signing keys, Checkpoints).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callboard.calls import Call, Steps, _keyed, _one, _segment, sending


@sending("POST", "/v1/trust/revoke")
def revoke_agent(
    did: str, reason: str, *, evidence: Mapping[str, Any], expires_at: str | None = None
) -> None:
    """Revoke an agent: it gets no work and is paid for none; for itself, its owner, administrators.

    Args:
        evidence: what shows it; kept, its hash goes into the audit chain.
        expires_at: an ISO 8601 time; None: for good.
    """


def unrevoke_agent(did: str) -> Steps:
    """Take a revoked agent back; for who has revoked it, and administrators."""
    done = {"success": True, "id": did, "did": did, "revoked": False}
    return _one(Call("DELETE", f"/v1/revoked/{_segment(did)}", done=done))


@sending("GET", "/.well-known/callboard.json")
def service_description() -> None:
    """Read the service's name, the origin of its checkpoints and its signing keys."""


@sending("GET", "/v1/audit/checkpoint")
def audit_checkpoint(*, size: int | None = None) -> None:
    """Read a signed checkpoint of the audit log.

    Args:
        size: the first one that covers this entry; None: the newest one.
    """


@sending("GET", "/v1/audit/proof", entry_id="id")
def audit_proof(entry_id: int, *, size: int | None = None) -> None:
    """Read the proof that the audit log holds an entry.

    Args:
        size: of the tree; None: that of the newest checkpoint.
    """


@sending("GET", "/v1/audit/consistency", from_size="from", to_size="to")
def audit_consistency(from_size: int, *, to_size: int | None = None) -> None:
    """Read the proof that the audit log continues an older state.

    Args:
        from_size, to_size: numbers of entries; None: those of the newest checkpoint.
    """


@sending("GET", "/v1/audit/verify", from_id="from")
def check_audit(*, from_id: int | None = None, limit: int | None = None) -> None:
    """Let the service read stored audit entries again and check them.

    Args:
        from_id: the first one; None: entry 1.
        limit: how many, at most 10,000; None: 1,000.
    """


@sending("POST", "/v1/trust/signing-key/rotate")
def rotate_signing_key() -> None:
    """Let the deployment sign with a new key; for administrators."""


@sending("POST", "/v1/signed-results/{node_id}/verify")
def verify_result(
    node_id: str,
    workflow_id: str,
    *,
    result: Any = None,
    result_hash: str | None = None,
    signature: str | None = None,
    public_key: str | None = None,
) -> None:
    """Compare a result with the stored one of a node, and verify its agent's signature.

    Args:
        result, result_hash: give one of the two; default: the stored result.
        public_key: base64; the key to verify with.
    """


def submit_receipt(receipt: Mapping[str, Any]) -> Steps:
    """Submit the caller's receipt of a node, as its agent, the agent's owner or the payer.

    Args:
        receipt: with `workflowId` and `nodeId`.
    """
    return _one(Call("POST", "/v1/receipts", body=dict(receipt), headers=_keyed(None)))


@sending("POST", "/v1/receipts/verify")
def verify_receipt(receipt: Mapping[str, Any]) -> None:
    """Ask whether the deployment has signed a receipt."""
