"""Reads of subnets, members and policies, as callers may see them.

Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.records.statuses import PolicyType
from core.subnets.policies import Policy
from ledger.reads.reader import LedgerReader, RowDict

# Whether a DID that is no administrator may see a subnet `s`.
IS_SHOWN: Final = """
    (s.policy_type <> 'private' OR s.owner_did = {viewer} OR EXISTS (
        SELECT FROM callboard.subnet_member m LEFT JOIN callboard.agent a ON a.did = m.did
        WHERE m.subnet_id = s.id AND m.status <> 'removed' AND {viewer} IN (m.did, a.owner_did)))
"""
_MAY_SEE: Final = f"(CAST(:viewer AS text) IS NULL OR {IS_SHOWN.format(viewer=':viewer')})"
_SUBNETS: Final = sql.text(
    f"""
    SELECT s.*,
        ARRAY(SELECT did FROM callboard.subnet_member
            WHERE subnet_id = s.id AND status <> 'removed' ORDER BY did) AS member_dids,
        ARRAY(SELECT did FROM callboard.subnet_member
            WHERE subnet_id = s.id AND status = 'joined' ORDER BY did) AS joined_dids
    FROM callboard.subnet s
    WHERE (CAST(:member AS text) IS NULL OR EXISTS (SELECT FROM callboard.subnet_member
            WHERE subnet_id = s.id AND did = :member AND status <> 'removed'))
        AND (CAST(:id AS text) IS NULL OR s.id = CAST(:id AS text))
        AND (CAST(:after AS text) IS NULL OR s.id > CAST(:after AS text))
        AND s.removed_ms IS NULL AND {_MAY_SEE}
    ORDER BY s.id LIMIT :limit OFFSET :offset
    """
).bindparams(sql.bindparam("viewer", type_=sql.Text), sql.bindparam("member", type_=sql.Text))
_POLICIES: Final = sql.text(
    f"""
    SELECT p.* FROM callboard.subnet_policy p JOIN callboard.subnet s ON s.id = p.subnet_id
    WHERE p.removed_ms IS NULL
        AND (CAST(:subnet AS text) IS NULL OR p.subnet_id = CAST(:subnet AS text))
        AND (CAST(:after AS text) IS NULL OR p.id > CAST(:after AS text))
        AND {_MAY_SEE}
    ORDER BY p.id LIMIT :limit OFFSET :offset
    """
).bindparams(sql.bindparam("viewer", type_=sql.Text))
_BINDING: Final = sql.text(
    """
    SELECT p.* FROM callboard.subnet_member m
        JOIN callboard.subnet_policy p ON p.subnet_id = m.subnet_id
    WHERE m.did = :did AND m.status = 'joined' AND p.removed_ms IS NULL ORDER BY p.id
    """
)
_JOINED: Final = sql.text(
    "SELECT FROM callboard.subnet_member WHERE subnet_id = :id AND did = :did AND status = 'joined'"
)


async def subnet_rows(
    reader: LedgerReader,
    viewer: str | None,
    *,
    subnet_id: str | None = None,
    member_did: str | None = None,
    limit: int = 1,
    offset: int = 0,
    after: str | None = None,
) -> list[RowDict]:
    """Return subnets with `member_dids` and `joined_dids`, the oldest first.

    Args:
        viewer: the DID that may see them; None: an administrator.
        member_did: only those in which this DID is listed or has joined.
    """
    values = {"viewer": viewer, "id": subnet_id, "member": member_did}
    page = {"limit": limit, "offset": offset, "after": after}
    return await reader.rows(_SUBNETS, {**values, **page})


async def policy_rows(
    reader: LedgerReader,
    viewer: str | None,
    *,
    subnet_id: str | None,
    limit: int,
    offset: int,
    after: str | None,
) -> list[RowDict]:
    """Return policies of the subnets that a DID may see, None: of all; the oldest first."""
    values = {"viewer": viewer, "subnet": subnet_id, "after": after}
    return await reader.rows(_POLICIES, {**values, "limit": limit, "offset": offset})


async def binding_policies(reader: LedgerReader, did: str) -> list[Policy]:
    """Return the policies of all subnets that a DID has joined."""
    return [policy_of(row) for row in await reader.rows(_BINDING, {"did": did})]


async def has_joined(reader: LedgerReader, subnet_id: str, did: str) -> bool:
    """Say whether a DID has joined a subnet, by its id."""
    return bool(await reader.rows(_JOINED, {"id": subnet_id, "did": did}))


def policy_of(row: RowDict) -> Policy:
    """Return the policy of a row."""
    return Policy(
        id=str(row["id"]),
        subnet_id=str(row["subnet_id"]),
        kind=PolicyType(row["type"]),
        capability=row["capability"],
        region=row["region"],
        limit_per_minute=row["limit_per_minute"],
    )
