"""Seals stored secrets with the newest deployment key, and counts what still needs an older key.

The first byte of a sealed secret is the version of its key; an index finds secrets by it. Resealing
does not change the content of a secret, so it needs no command. An operational statement replaces a
secret if it has not changed since it was read. Resealing may be interrupted and repeated. Replies
and attempts that need an older key are only counted, because they end by themselves. Decision
permissions-and-keys.
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

# Maximum secrets per statement; the writer may have to wait for their rows.
SECRETS_MAX: Final = 50
# The pause between two statements.
_PAUSE_S: Final = 0.05
# Maximum replies that are examined, those that expire first.
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
# All replies are stored for the same time, so those sealed by an earlier key expire first.
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
    """The numbers of stored values that need one version of the deployment key: secrets (the
    signing key, and secrets of agents, hooks and webhooks), open attempts, and replies.

    `last_ms`: the latest deadline of these attempts, Unix milliseconds; None without attempts.
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
    """Return `id`, `secret` and `purpose` of secrets sealed by a version, in the order of ids.

    `id` is a DID, or the id of a hook, a webhook or a signing key.

    Args:
        after: only ids after this one.
    """
    values = {"version": bytes([version]), "after": after, "limit": limit}
    return await reader.rows(_SEALED, values)


class SealedSecrets(OperationalPool):
    """Replaces sealed secrets and reads sealed replies, as the operational role."""

    # Commits wait for the disk, because the old key may be removed as soon as no secret is sealed
    # with it.
    name, is_durable = "callboard-secrets", True

    async def replace(self, changes: Sequence[tuple[str, bytes, bytes]]) -> int:
        """Replace secrets that have not changed since they were read; return their number.

        Args:
            changes: (id, the secret as it was read, the resealed secret).

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        ids, before, after = (list(column) for column in zip(*changes, strict=True))
        values = {"ids": ids, "before": before, "after": after}
        (row,) = await self.rows(_RESEAL, values)
        return int(row["resealed"])

    async def has_replies(self, version: int) -> bool:
        """Say whether stored replies are sealed by a version.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        values = {"version": bytes([version]), "limit": _REPLIES_SEEN}
        (row,) = await self.rows(_REPLIES, values)
        return bool(row["has_replies"])


async def seal_anew(reader: LedgerReader, store: SealedSecrets, keys: DeploymentKeys) -> int:
    """Seal all secrets that are sealed with the oldest key again, with the newest key.

    A secret that cannot be unsealed, or that has changed meanwhile, is left as it is.

    Returns: the number of resealed secrets.

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
    """Return the numbers of stored values that need the key of a version.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE.
    """
    (counted,) = await reader.rows(_COUNT, {"version": bytes([version])})
    (attempts,) = await reader.rows(_ATTEMPTS, {"version": version})
    has_replies = await store.has_replies(version)
    return MadeWithKey(counted["secrets"], attempts["attempts"], attempts["last_ms"], has_replies)
