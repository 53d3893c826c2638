"""The token with which an agent hands in the result of one attempt (`resultId`).

Derived, never stored: HMAC with a key of the deployment over the workflow, the node and the
attempt. Pure. Spec: Dispatch request; design.md section 3.
"""

from __future__ import annotations

import hmac

from core.trust.derived_keys import KeyPurpose, derived_key


def result_id(
    deployment_key: bytes,
    workflow_id: str,
    node: str,
    attempt: int,
    *,
    is_verification: bool,
    key_version: int,
) -> str:
    """Return the unguessable token with which an asynchronous agent hands in its result.

    Args:
        deployment_key: 32 secret bytes of this deployment.
        attempt: of the node, or of its verification. The two have different tokens, so that the
            agent that did the work cannot approve it.
        key_version: the derived key's version, as stored with the attempt.
    """
    key = derived_key(deployment_key, KeyPurpose.RESULT_ID, key_version)
    prefix = "verify|" if is_verification else ""
    message = f"{prefix}{workflow_id}|{node}|{attempt}".encode()
    return hmac.digest(key, message, "sha256").hex()
