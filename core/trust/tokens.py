"""Tokens that only this deployment can make: heartbeat tokens and result tokens. Pure.

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

# A heartbeat token lets an agent send heartbeats without its owner's API key. It permits nothing
# else. It is computed and never stored: an HMAC with a key of the deployment over the agent's DID
# and a revision. When a deregistered agent registers again, the revision is increased, which
# invalidates earlier tokens.

PREFIX: Final = "hb_"
_FORM: Final = re.compile(r"hb_([1-9][0-9]{0,9})_([A-Za-z0-9_-]{1,512})_([0-9a-f]{64})")


def heartbeat_token(keys: DeploymentKeys, did: str, revision: int) -> str:
    """Return the heartbeat token of an agent.

    Args:
        keys: the deployment's keys.
        did: the DID of the agent.
        revision: the revision in the agent's row, 1 or more.
    """
    name = base64.urlsafe_b64encode(did.encode()).decode().rstrip("=")
    key, *_ = derived_keys(keys, KeyPurpose.HEARTBEAT_TOKEN)
    return f"{PREFIX}{revision}_{name}_{_signature(key, did, revision)}"


def read_heartbeat_token(keys: DeploymentKeys, token: str) -> tuple[str, int] | None:
    """Return (did, revision) of a valid heartbeat token; None for any other text.

    Signatures are compared in constant time. The caller must compare the revision with that in the
    agent's row.
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


# A result token (`resultId`) lets an agent send the result of one attempt later. It is computed and
# never stored: an HMAC with a key of the deployment over the workflow, the node and the attempt.


def result_id(
    keys: DeploymentKeys,
    workflow_id: str,
    node: str,
    attempt: int,
    *,
    is_verification: bool,
    key_version: int,
) -> str:
    """Return the result token of an attempt or of a verification.

    Args:
        keys: the deployment's keys.
        attempt: the number of the attempt or of the verification.
        is_verification: whether it is a verification. Attempts and verifications have different
            tokens, so that an agent cannot approve its own work.
        key_version: the version of the key that is stored with the attempt, in `keys.versions`.
    """
    prefix = "verify|" if is_verification else ""
    keyed = _keyed(derived_key(keys, KeyPurpose.RESULT_ID, key_version)).copy()
    keyed.update(f"{prefix}{workflow_id}|{node}|{attempt}".encode())
    return keyed.hexdigest()


@lru_cache(maxsize=64)
def _keyed(key: bytes) -> hmac.HMAC:
    # The caller copies the object for each token.
    return hmac.new(key, digestmod="sha256")
