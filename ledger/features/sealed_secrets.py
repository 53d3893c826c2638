"""What was made with a key of the deployment: its signing key and secrets, by the key that seals.

The first byte of a sealed secret is the version of its key, and an index finds it. Sealing anew
changes no meaning, so it is no command: an operational statement replaces a secret that is still
the one that was read, and may be interrupted. Replies and attempts of another key are only counted:
they end by themselves. Decision permissions-and-keys.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql

from core.trust.deployment_keys import NONCE_BYTES, DeploymentKeys, KeyPurpose, seal, unseal
from ledger.connections.pools import OperationalPool
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict

log = logging.getLogger("callboard.secrets")

# Of one statement, whose rows the writer may wait for.
SECRETS_MAX: Final = 50
# Between two statements.
_PAUSE_S: Final = 0.05
# Replies that are looked at: of those that are kept, the ones that are removed next.
_REPLIES_SEEN: Final = 1_000

_VERSION: Final = sql.bindparam("version", type_=sql.LargeBinary)
_SEALED: Final = sql.text(
    "SELECT id, secret, purpose FROM callboard.sealed_secret"
    " WHERE substring(secret, 1, 1) = :version AND id > :after ORDER BY id LIMIT :limit"
).bindparams(_VERSION)
_COUNT: Final = sql.text(
    "SELECT count(*) AS secrets FROM callboard.sealed_secret"
    " WHERE substring(secret, 1, 1) = :version"
).bindparams(_VERSION)
_ATTEMPTS: Final = sql.text(
    """
    SELECT count(*) AS attempts, max(n.deadline_ms) AS last_ms
    FROM callboard.workflow w JOIN callboard.node n ON n.workflow_id = w.id
    WHERE w.completed_ms IS NULL AND n.status IN ('dispatched', 'running')
        AND n.key_version = :version
    """
)
# A reply is kept for the same time as every other, so those of an earlier key are removed first.
_REPLIES: Final = sql.text(
    """
    SELECT coalesce(bool_or(substring(reply, 1, 1) = :version), false) AS has_replies
    FROM (
        SELECT reply FROM callboard.http_reply
        WHERE expires_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
        ORDER BY expires_ms LIMIT :limit
    ) AS next
    """
).bindparams(_VERSION)
_RESEAL: Final = sql.text(
    "SELECT callboard.reseal_secrets(:ids, :before, :after) AS resealed"
).bindparams(
    sql.bindparam("ids", type_=sql.ARRAY(sql.Text)),
    sql.bindparam("before", type_=sql.ARRAY(sql.LargeBinary)),
    sql.bindparam("after", type_=sql.ARRAY(sql.LargeBinary)),
)


@dataclass(frozen=True, slots=True)
class MadeWithKey:
    """What is left that only one key can read: the signing key, the secrets of agents, hooks and
    webhooks, open attempts, kept replies.

    `last_ms`: when the last of the attempts ends, Unix milliseconds; None without one.
    """

    secrets: int
    attempts: int
    last_ms: int | None
    has_replies: bool

    def __bool__(self) -> bool:
        return bool(self.secrets or self.attempts or self.has_replies)


async def sealed_secrets(
    reader: LedgerReader, version: int, *, after: str, limit: int
) -> list[RowDict]:
    """Return `id` (a DID, or the id of a hook, a webhook or a signing key), `secret` and `purpose`
    of what is sealed by a version, in order.

    Args:
        after: only those behind this id.
    """
    values = {"version": bytes([version]), "after": after, "limit": limit}
    return await reader.rows(_SEALED, values)


class SealedSecrets(OperationalPool):
    """Replaces sealed secrets, and counts what was made with a key, as the operational role."""

    # Durable: the key of before may be ended as soon as nothing is sealed by it any more.
    name, is_durable = "callboard-secrets", True

    async def replace(self, changes: Sequence[tuple[str, bytes, bytes]]) -> int:
        """Replace secrets that are still as they were read; return how many it were.

        Args:
            changes: (id, sealed as before, sealed anew).

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        ids, before, after = (list(column) for column in zip(*changes, strict=True))
        values = {"ids": ids, "before": before, "after": after}
        (row,) = await self.rows(_RESEAL, values)
        return int(row["resealed"])

    async def has_replies(self, version: int) -> bool:
        """Say whether replies are kept that are sealed by a version.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        values = {"version": bytes([version]), "limit": _REPLIES_SEEN}
        (row,) = await self.rows(_REPLIES, values)
        return bool(row["has_replies"])


async def seal_anew(reader: LedgerReader, store: SealedSecrets, keys: DeploymentKeys) -> int:
    """Seal by the newest key, which is in use, what the other key has sealed.

    A secret that the writer holds, or that cannot be read, is left as it is.

    Returns: how many secrets were sealed anew.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE.
    """
    after, resealed = "", 0
    while found := await sealed_secrets(reader, min(keys.versions), after=after, limit=SECRETS_MAX):
        changes = []
        for row in found:
            before, purpose = bytes(row["secret"]), KeyPurpose(row["purpose"])
            secret = unseal(before, keys, purpose)
            if secret is None:
                log.error("a %s cannot be read of=%s", purpose, row["id"])
                continue
            changes.append(
                (row["id"], before, seal(secret, keys, os.urandom(NONCE_BYTES), purpose))
            )
        if changes:
            resealed += await store.replace(changes)
        after = found[-1]["id"]
        await asyncio.sleep(_PAUSE_S)
    return resealed


async def made_with_key(reader: LedgerReader, store: SealedSecrets, version: int) -> MadeWithKey:
    """Return what is left that only the key of a version can read.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE.
    """
    (counted,) = await reader.rows(_COUNT, {"version": bytes([version])})
    (attempts,) = await reader.rows(_ATTEMPTS, {"version": version})
    has_replies = await store.has_replies(version)
    return MadeWithKey(counted["secrets"], attempts["attempts"], attempts["last_ms"], has_replies)
