"""The deployment's signing keys. The first key is created at the first start. Commands replace the
current key.

Reference: money.md (Signing keys).
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql

from core.errors import ErrorCode, ServiceError
from core.json_text import read_json
from core.records.audit import AuditEventType
from core.trust.deployment_keys import DeploymentKeys
from core.trust.signing_keys import (
    SigningKey,
    checkpoint_origin,
    key_id_of,
    unseal_signing_key,
)
from ledger.authority import AuthorizedCommand
from ledger.connections.connect import fetch
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from ledger.schema import signing_key
from ledger.tables.history_tables import RETIRED_SIGNING_KEYS, SIGNING_KEYS
from ledger.writer.batch import Batch, Result, conflict
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet

_IN_USE: Final = "SELECT key_id FROM callboard.signing_key WHERE retired_ms IS NULL"
_KEYS: Final = (
    sql.select(*(one for one in signing_key.c if one.name != "sealed"))
    .order_by(signing_key.c.audit_id.desc())
    .limit(sql.bindparam("most", type_=sql.Integer))
)
_FIRST: Final = sql.text("SELECT body FROM callboard.audit WHERE id = 1")
_SEALED: Final = sql.select(signing_key.c.sealed).where(signing_key.c.retired_ms.is_(None))
# More than enough: a deployment rotates its key a few times a year.
KEYS_SHOWN_MAX: Final = 1_000


class RotateSigningKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Replace the signing key.

    `former_key_id`: the key that is replaced. `proof`: its signature over the new public key.
    `sealed`: the new private key, sealed. Rejection: CONFLICT (another rotation came first).
    Result: {"keyId", "publicKey", "formerKeyId"}.
    """

    former_key_id: str
    public_key: str
    sealed: bytes
    proof: str


async def _load(connection: Connection, command: RotateSigningKey, read_set: ReadSet) -> Any:
    rows = await fetch(connection, _IN_USE, {})
    return rows[0][0] if rows else None


@plans(RotateSigningKey, load=_load, outlives_credential=True)
def plan_rotate_signing_key(command: RotateSigningKey, batch: Batch) -> Result:
    """Retire the key in use and store the new one."""
    if batch.loaded != command.former_key_id:
        raise conflict("the signing key was rotated during the request")
    key_id = key_id_of(command.public_key)
    audit_id = batch.record(
        AuditEventType.SIGNING_KEY_ROTATED,
        ("signing_key", key_id),
        formerKeyId=command.former_key_id,
        keyId=key_id,
        publicKey=command.public_key,
        proof=command.proof,
    )
    batch.add(RETIRED_SIGNING_KEYS, {"key_id": command.former_key_id})
    add_signing_key(batch, command.public_key, command.sealed, audit_id)
    return {
        "keyId": key_id,
        "publicKey": command.public_key,
        "formerKeyId": command.former_key_id,
    }


def add_signing_key(batch: Batch, public_key: str, sealed: bytes, audit_id: int) -> None:
    """Store the key that is used from now on.

    Args:
        audit_id: the audit entry that contains its public key.
    """
    row = {"public_key": public_key, "audit_id": audit_id, "sealed": sealed}
    batch.store(SIGNING_KEYS, public_key, key_id=key_id_of(public_key), **row)


async def signing_key_rows(reader: LedgerReader) -> list[RowDict]:
    """Return all signing keys without their private keys, newest first."""
    return await reader.rows(_KEYS, {"most": KEYS_SHOWN_MAX})


async def read_signing_key(reader: LedgerReader, keys: DeploymentKeys) -> SigningKey:
    """Return the key in use.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE; INTERNAL_ERROR, another deployment key has sealed it.
    """
    rows = await reader.rows(_SEALED)
    key = unseal_signing_key(bytes(rows[0]["sealed"]), keys) if rows else None
    if key is None:
        raise ServiceError(
            ErrorCode.INTERNAL_ERROR, "this deployment's key does not open its signing key"
        )
    return key


async def read_origin(reader: LedgerReader) -> str:
    """Return the origin text of the deployment's checkpoints."""
    (first,) = await reader.rows(_FIRST)
    terms = read_json(first["body"].encode())["payload"]
    return checkpoint_origin(terms["origin"], terms["publicKey"])
