"""The deployment's signing keys. Reference: money.md (Signing keys)."""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import Did, Timestamp, Yes
from core.records.api.record import Record


class SigningKey(Record):
    """A key with which the deployment signs, or signed."""

    key_id: Annotated[str, "Id of the key: 16 hexadecimal digits."]
    public_key: Annotated[str, "Public key (Ed25519), base64."]
    valid_from: Annotated[Timestamp, "Time from which it signs."]
    valid_until: Annotated[Timestamp | None, "Time until which it signed; null for the key in use."]
    audit_id: Annotated[int, "Audit entry that names the key."]


class ServiceDescription(Record):
    """What a verifier needs to know of the deployment."""

    service: Annotated[str, "Name of the service."]
    did: Annotated[Did, "DID of the deployment; it stays the same when the key is rotated."]
    region: Annotated[str, "Region of the deployment."]
    origin: Annotated[str, "Origin of the checkpoints of its audit log."]
    signing_keys: Annotated[list[SigningKey], "Signing keys, the newest first."]


class SigningKeyRotated(Record):
    """The signing key that is in use now."""

    success: Yes
    id: Annotated[str, "Id of the key."]
    key_id: str
    public_key: Annotated[str, "Public key (Ed25519), base64."]
    former_key_id: Annotated[str, "Id of the key that was in use before."]
