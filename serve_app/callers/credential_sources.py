"""Reads credentials from the database, and the keys of the issuer of access tokens.

This module converts rows of `ledger/` to the values of this package.
"""

from __future__ import annotations

import hmac

from core.records.bounds import TIME_MS_MAX
from core.settings import Settings
from core.trust.access import ADMIN, Principal
from core.trust.requests.did_standing import DidStanding
from federation.documents import fetch_jwks
from ledger.features.keys import standing_rows
from ledger.features.nonces import NonceStore
from ledger.reads.reader import LedgerReader, RowDict
from serve_app.callers.auth import CredentialSources, FindKeys, StoredKey


def sources_of(reader: LedgerReader, nonces: NonceStore, settings: Settings) -> CredentialSources:
    """Return the functions with which a replica's authenticator reads stored credentials."""

    async def find_standings(dids: list[str]) -> list[DidStanding | None]:
        found = await standing_rows(reader, dids)
        return [_standing(found.get(did)) for did in dids]

    async def fetch() -> bytes:
        return await fetch_jwks(settings.jwks_url, settings.egress_allow)

    return CredentialSources(
        find_keys_in(reader), find_standings, nonces.take, fetch if settings.jwks_url else None
    )


def _standing(row: RowDict | None) -> DidStanding | None:
    if row is None:
        return None
    return DidStanding(
        registered_key=row["public_key"],
        owner_did=row["owner_did"],
        is_active=row["is_active"],
        has_keys=row["has_keys"],
        is_revoked=row["is_revoked"],
        peer_key=row["peer_key"],
    )


def find_keys_in(reader: LedgerReader) -> FindKeys:
    """Return the function that looks up API keys. It returns None for unknown and revoked keys."""

    async def find(digests: list[bytes]) -> list[StoredKey | None]:
        found = await reader.api_keys_by_hashes(digests)
        return [_stored(found.get(digest), digest) for digest in digests]

    return find


def _stored(row: RowDict | None, digest: bytes) -> StoredKey | None:
    """Return a valid API key; None for an unknown or revoked key.

    If the owner's DID is revoked, all keys of the owner are invalid, except keys with the scope
    `admin`. Otherwise a caller with the right to revoke could lock out all administrators.
    """
    if row is None or row["revoked_ms"] is not None:
        return None
    if row["is_owner_revoked"] and ADMIN not in row["scopes"]:
        return None
    principal = Principal(
        did=row["owner_did"],
        key_id=str(row["id"]),
        scopes=frozenset(row["scopes"]),
        rate_class=row["rate_class"],
        rate_limits=tuple((row["rate_limits"] or {}).items()),
        expires_ms=row["expires_ms"],
        key_hash=digest,
    )
    ends_ms = row["expires_ms"]
    # If the digest is not the current hash, it is the hash of the secret before the last rotation.
    if not hmac.compare_digest(bytes(row["hash"]), digest):
        ends_ms = min(row["previous_ends_ms"], ends_ms or TIME_MS_MAX)
    return StoredKey(principal, ends_ms)
