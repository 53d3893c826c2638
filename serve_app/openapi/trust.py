"""JSON Schemas of trust: revocations. Spec: Revocation; contract.md section 6."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.openapi.parts import (
    BOOLEAN,
    OBJECT,
    STRING,
    TIME,
    Schema,
    listing,
    nullable,
    record,
    with_example,
)

_DID = "did:net:summariser"
_REVOCATION: Mapping[str, Schema] = {
    "did": STRING,
    "revoked": BOOLEAN,
    "reason": nullable(STRING),
    "revokedAt": nullable(TIME),
    "expiresAt": {**nullable(TIME), "description": "null: for good, or not revoked"},
    "revokedByDid": STRING,
    "evidence": {**OBJECT, "description": "for those it is between, and administrators"},
}
_LOOKED_UP = "did revoked reason revokedAt expiresAt"

TRUST_SCHEMAS: Mapping[str, Schema] = {
    "RevocationRequest": with_example(
        record(
            "did reason evidence",
            did=STRING,
            reason={"type": "string", "minLength": 1, "maxLength": 1_000},
            evidence=OBJECT,
            expiresAt={**TIME, "description": "left out: for good"},
        ),
        {"did": _DID, "reason": "Hands in what others wrote.", "evidence": {"case": 17}},
    ),
    "Revocation": record(_LOOKED_UP, **_REVOCATION),
    "RevocationList": listing("revoked", "Revocation"),
    "Revoked": with_example(
        record(f"success id {_LOOKED_UP}", success=BOOLEAN, id=STRING, **_REVOCATION),
        {
            "success": True,
            "id": _DID,
            "did": _DID,
            "revoked": True,
            "reason": "Hands in what others wrote.",
            "revokedAt": "2026-01-31T12:00:00.000Z",
            "expiresAt": None,
            "revokedByDid": "did:net:admin",
            "evidence": {"case": 17},
        },
    ),
    "Unrevoked": record(
        f"success id {_LOOKED_UP} unrevokedAt",
        success=BOOLEAN,
        id=STRING,
        unrevokedAt=TIME,
        **_REVOCATION,
    ),
}
