"""The token with which an agent hands in the result of one attempt (`resultId`).

Derived, never stored: HMAC with a key of the deployment over the workflow, the node and the
attempt. Pure. Reference: features.md (Dispatch).
"""

from __future__ import annotations

import hmac
from functools import lru_cache

from core.trust.deployment_keys import DeploymentKeys
from core.trust.derived_keys import KeyPurpose, derived_key


def result_id(
    keys: DeploymentKeys,
    workflow_id: str,
    node: str,
    attempt: int,
    *,
    is_verification: bool,
    key_version: int,
) -> str:
    """Return the unguessable token with which an asynchronous agent hands in its result.

    Args:
        keys: of this deployment.
        attempt: of the node, or of its verification. The two have different tokens, so that the
            agent that did the work cannot approve it.
        key_version: the key's, as stored with the attempt; one of `keys.versions`.
    """
    prefix = "verify|" if is_verification else ""
    keyed = _keyed(derived_key(keys, KeyPurpose.RESULT_ID, key_version)).copy()
    keyed.update(f"{prefix}{workflow_id}|{node}|{attempt}".encode())
    return keyed.hexdigest()


@lru_cache(maxsize=64)
def _keyed(key: bytes) -> hmac.HMAC:
    # To be copied for each token.
    return hmac.new(key, digestmod="sha256")
