"""The deployment's first key: made once, kept in the deployment's folder, known to the ledger.

The order survives a crash between any two steps:
1. a key is written to `admin.key.new`, or the one that a crash left there is taken;
2. its hash is committed, under a command key that is derived from it;
3. the file is renamed to `admin.key`.
A start that finds `admin.key` commits it again, which changes nothing in a ledger that knows it.
"""

from __future__ import annotations

import os
from pathlib import Path

from core.trust.access import ADMIN, DEFAULT_SCOPES, DEPOSIT
from ledger.keys.key_commands import CreateKey
from serve_app.callers.auth import key_hash, new_api_key
from serve_app.callers.limits import UNLIMITED

ADMIN_DID = "did:callboard:admin"
FILE = "admin.key"

_UNCOMMITTED = "admin.key.new"


def prepared_key(home: Path) -> str:
    """Return the admin key of this folder, made and written down if there is none yet (step 1)."""
    for name in (FILE, _UNCOMMITTED):
        path = home / name
        if path.exists():
            api_key = path.read_text(encoding="ascii").strip()
            # A crash while the file was written leaves it short: no caller was given that key.
            if len(api_key) >= len(new_api_key()):
                return api_key
    api_key = new_api_key()
    _write_durably(home / _UNCOMMITTED, api_key)
    return api_key


def admin_key_command(api_key: str) -> CreateKey:
    """Return the command that stores the key; the same key, the same command (step 2)."""
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


def publish_key(home: Path) -> None:
    """Give the committed key its name (step 3)."""
    uncommitted = home / _UNCOMMITTED
    if uncommitted.exists():
        uncommitted.replace(home / FILE)
        _sync_folder(home)


def _write_durably(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, text.encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
