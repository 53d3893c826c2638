"""Tokens that only this deployment can make: of heartbeats, and of results. Pure.

Reference: features.md (Dispatch).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from functools import lru_cache
from typing import Final

from core.trust.deployment_keys import DeploymentKeys, KeyPurpose, derived_key, derived_keys

# The token with which an agent sends heartbeats without its owner's key. Derived, never stored:
# HMAC with a key of the deployment over the agent's DID and a revision. The revision is raised
# when a deregistered agent registers again, which invalidates earlier tokens. The token has no
# other right.

PREFIX: Final = "hb_"
_FORM: Final = re.compile(r"hb_([1-9][0-9]{0,9})_([A-Za-z0-9_-]{1,512})_([0-9a-f]{64})")


def heartbeat_token(keys: DeploymentKeys, did: str, revision: int) -> str:
    """Return an agent's token.

    Args:
        keys: of the deployment.
        did: the agent's.
        revision: 1 or more, from the agent's row.
    """
    name = base64.urlsafe_b64encode(did.encode()).decode().rstrip("=")
    key, *_ = derived_keys(keys, KeyPurpose.HEARTBEAT_TOKEN)
    return f"{PREFIX}{revision}_{name}_{_signature(key, did, revision)}"


def read_heartbeat_token(keys: DeploymentKeys, token: str) -> tuple[str, int] | None:
    """Return (did, revision) of a valid token of this deployment, compared in constant time.

    The caller compares the revision with the agent's row. None for any other text.
    """
    form = _FORM.fullmatch(token)
    if form is None:
        return None
    name = form[2]
    try:
        did = base64.b64decode(name + "=" * (-len(name) % 4), altchars=b"-_").decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    revision = int(form[1])
    for key in derived_keys(keys, KeyPurpose.HEARTBEAT_TOKEN):
        if hmac.compare_digest(_signature(key, did, revision), form[3]):
            return did, revision
    return None


def _signature(key: bytes, did: str, revision: int) -> str:
    return hmac.new(key, f"{revision}|{did}".encode(), hashlib.sha256).hexdigest()


# The token with which an agent hands in the result of one attempt (`resultId`). Derived, never
# stored: HMAC with a key of the deployment over the workflow, the node and the attempt.


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
