"""What is stored of DIDs that sign requests or hold access tokens, many in one statement.

Reads like those of `reader.py`, over the same pool. Decision signed-requests-and-claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sql
from sqlalchemy import Text
from sqlalchemy.dialects.postgresql import ARRAY

from ledger.reads.reader import LedgerReader, RowDict

_STANDINGS: Final = sql.text(
    """
    SELECT * FROM (
        SELECT given.did, agent.public_key, agent.owner_did, peer.public_key AS peer_key,
            coalesce(agent.status = 'active', false) AS is_active,
            EXISTS (SELECT FROM callboard.api_key AS own WHERE own.owner_did = given.did)
                AS has_keys,
            EXISTS (
                SELECT FROM callboard.revocation AS r WHERE r.did = given.did AND r.ended_ms IS NULL
                    AND (r.expires_ms IS NULL
                        OR r.expires_ms > extract(epoch FROM clock_timestamp()) * 1000)
            ) AS is_revoked
        FROM unnest(:dids) AS given (did)
        LEFT JOIN callboard.agent AS agent ON agent.did = given.did
        LEFT JOIN callboard.peer AS peer ON peer.did = given.did AND peer.removed_ms IS NULL
    ) AS standing
    WHERE owner_did IS NOT NULL OR has_keys OR is_revoked OR peer_key IS NOT NULL
    """
).bindparams(sql.bindparam("dids", type_=ARRAY(Text)))


async def standing_rows(reader: LedgerReader, dids: Sequence[str]) -> dict[str, RowDict]:
    """Return what is stored of these DIDs; one that is not here has no row."""
    rows = await reader.rows(_STANDINGS, {"dids": list(dids)})
    return {row["did"]: row for row in rows}
