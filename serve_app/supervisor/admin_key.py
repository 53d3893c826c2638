"""The admin key: the deployment's first API key, in the deployment's home and in the ledger.

The key is written to its file before it is committed, so a start after a crash commits the same
key. Every start commits the admin key. The ledger key of the command is derived from the admin key,
so repeating the command changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from core.trust.access import ADMIN, DEFAULT_SCOPES, DEPOSIT
from ledger.embedded.server import write_private
from ledger.features.keys import CreateKey
from serve_app.callers.auth import key_hash, new_api_key
from serve_app.callers.limits import UNLIMITED

ADMIN_DID = "did:callboard:admin"
FILE = "admin.key"


def prepared_key(home: Path) -> str:
    """Return the admin key of a deployment's home; create the key file if it does not exist."""
    file = home / FILE
    if not file.exists():
        write_private(file, new_api_key())
    return file.read_text(encoding="ascii").strip()


def admin_key_command(api_key: str) -> CreateKey:
    """Return the command that stores the key; the same key gives the same command."""
    digest = key_hash(api_key)
    key_id = f"admin-{digest.hex()[:16]}"
    return CreateKey(
        key=f"key:{key_id}",
        actor_did=ADMIN_DID,
        key_id=key_id,
        key_hash=digest,
        owner_did=ADMIN_DID,
        name="made at the first start",
        scopes=(ADMIN, DEPOSIT, *DEFAULT_SCOPES),
        rate_class=UNLIMITED,
        rate_limits_json=None,
        expires_ms=None,
    )
