"""The deployment's signing keys: everyone may read them, administrators rotate them.

Reference: money.md (Signing keys).
"""

from __future__ import annotations

import os

from core.records.api.trust import ServiceDescription, SigningKey, SigningKeyRotated
from core.trust.access import ADMIN
from core.trust.deployment_keys import NONCE_BYTES
from core.trust.signing_keys import (
    SEED_BYTES,
    next_signing_key,
    signing_key_rotation_message,
)
from ledger.features.own_state import read_own_did
from ledger.features.signing_keys import (
    RotateSigningKey,
    read_origin,
    read_signing_key,
    signing_key_rows,
)
from serve_app.http.calls import Call, Json, Operations
from serve_app.operations.views import iso_time, shown, shown_result

OPERATIONS = Operations("trust")


@OPERATIONS.add("GET", "/.well-known/callboard.json", scope=None, reply=ServiceDescription)
async def describe(call: Call) -> Json:
    """Read the DID, the region and the signing keys of the deployment."""
    settings = call.services.settings
    keys = await signing_key_rows(call.services.reader)
    shown_keys = [
        shown(
            SigningKey,
            key,
            valid_from=iso_time(key["created_ms"]),
            valid_until=iso_time(key["retired_ms"]),
        )
        for key in keys
    ]
    origin = await read_origin(call.services.reader)
    did = await read_own_did(call.services.reader)
    named = {"service": settings.service, "did": did, "region": settings.region}
    return {**named, "origin": origin, "signingKeys": shown_keys}


@OPERATIONS.add("POST", "/v1/trust/signing-key/rotate", scope=ADMIN, reply=SigningKeyRotated)
async def rotate(call: Call) -> Json:
    """Rotate the signing key of the deployment.

    If the key of the setting `signing_key` was never in use, it becomes the signing key. Otherwise
    a new key is created. The rotation is recorded in the audit chain, signed by the previous key.
    """
    settings, reader = call.services.settings, call.services.reader
    former = await read_signing_key(reader, settings.deployment_keys)
    known = [row["key_id"] for row in await signing_key_rows(reader)]
    key = next_signing_key(settings.signing_key, known, os.urandom(SEED_BYTES))
    command = RotateSigningKey(
        former_key_id=former.key_id,
        public_key=key.public_key,
        sealed=key.seal(settings.deployment_keys, os.urandom(NONCE_BYTES)),
        proof=former.sign(signing_key_rotation_message(key.public_key)),
    )
    outcome = await call.commit(command)
    return shown_result(SigningKeyRotated, outcome, id=outcome.result["keyId"])
