"""Seals agents' signing secrets anew after the deployment's key has changed, a few at a time.

The version of the key stands in each secret, so what is left is found in the rows: it does not
matter where a timekeeper ends. While there is one key alone nothing is read. Decision
permissions-and-keys.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

from core.settings import Settings
from core.trust.derived_keys import KeyPurpose
from core.trust.sealing import NONCE_BYTES, seal, unseal
from ledger.agents.sealed_secrets import SealedSecrets, sealed_secrets
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.secrets")

ROUND_S: Final = 2.0
# Of one statement, whose rows the writer may wait for.
SECRETS_MAX: Final = 50
# Between two statements while there is more to do.
_PAUSE_S: Final = 0.05


class SecretWatch:
    """Seals by the key in use what the other accepted key has sealed.

    Args:
        settings: the deployment's.
        reader: of the committed rows.
    """

    def __init__(self, settings: Settings, reader: LedgerReader) -> None:
        self._keys = settings.deployment_keys
        self._reader = reader
        self._store = SealedSecrets(settings.database_url)
        self._after = ""  # the agent that was looked at last
        self._resealed = 0

    def __repr__(self) -> str:
        return f"<SecretWatch resealed={self._resealed}>"

    async def close(self) -> None:
        """Close the connection."""
        await self._store.close()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            is_more = False
            try:
                is_more = await self.round()
            except Exception:  # the edge of the loop: a failed round must not end the watch
                log.exception("secrets not sealed anew")
            await asyncio.sleep(_PAUSE_S if is_more else ROUND_S)

    async def round(self) -> bool:
        """Seal a few secrets anew; say whether there may be more of them at once."""
        keys = self._keys
        # The newest is accepted before it is in use: until then all are sealed by the one in use.
        if len(keys.versions) < 2 or keys.version != max(keys.versions):
            return False
        found = await sealed_secrets(
            self._reader, min(keys.versions), after=self._after, limit=SECRETS_MAX
        )
        changes = []
        for did, before in found:
            secret = unseal(before, keys, KeyPurpose.SIGNING_SECRET)
            if secret is None:
                log.error("a signing secret cannot be read did=%s", did)
                continue
            nonce = os.urandom(NONCE_BYTES)
            changes.append((did, before, seal(secret, keys, nonce, KeyPurpose.SIGNING_SECRET)))
        if changes:
            resealed = await self._store.replace(changes)
            self._resealed += resealed
            log.info("secrets sealed anew count=%d version=%d", resealed, keys.version)
        is_more = len(found) == SECRETS_MAX
        self._after = found[-1][0] if is_more else ""
        return is_more
