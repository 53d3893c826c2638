"""Signs requests to peers as this deployment, with its current key.

Reference: features.md (Peers), http.md (Authentication).
"""

from __future__ import annotations

import secrets
import time

from core.trust.deployment_keys import DeploymentKeys
from core.trust.requests.request_signature import signature_headers
from core.trust.signing_keys import SigningKey
from ledger.peers.own_state import read_own_did
from ledger.peers.peer_reads import is_agent_revoked
from ledger.proofs.signing_keys import read_signing_key
from ledger.reads.reader import LedgerReader


class RequestSigner:
    """Signs requests; reads the key for the first one, and again after `forget`.

    Args:
        reader: of the ledger's rows.
        keys: unseal the signing key.
    """

    def __init__(self, reader: LedgerReader, keys: DeploymentKeys) -> None:
        self._reader = reader
        self._keys = keys
        self._did = ""
        self._key: SigningKey | None = None

    def forget(self) -> None:
        """Read the key again at the next request: a peer returned 401, so it may be rotated."""
        self._key = None

    async def headers(self, method: str, url: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign a request.

        Args:
            method: in upper case.
            url: as it is sent.
            body: empty for none.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; INTERNAL_ERROR: the signing key cannot be decrypted
                with the `deployment_key` of the settings.
        """
        if not self._did:
            self._did = await read_own_did(self._reader)
        key = self._key
        if key is None:
            key = self._key = await read_signing_key(self._reader, self._keys)
        return signature_headers(
            method,
            url,
            body,
            did=self._did,
            private_key=key.seed,
            created_s=int(time.time()),
            nonce=secrets.token_hex(12),
        )

    async def is_revoked(self, peer_id: str, agent_did: str) -> bool:
        """Say whether an agent at a peer is revoked, here or there (`is_agent_revoked`).

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        return await is_agent_revoked(self._reader, peer_id, agent_did)
