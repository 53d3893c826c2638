"""The rows that every owner keeps: each kind read whole, or only what has changed since a look.

The writer notes in each row, as `changed_id`, the audit id of the batch that changed it. These ids
are in the order of the commits, so what an owner has not seen are the rows above the newest id it
has seen. Heartbeats and probes have several writers and no audit entries: they are found by their
time and by the transactions that the earlier look could not see. Decision agent-health-and-waiting.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import sqlalchemy as sql

from ledger.accounts.account_reads import STAKE_PARTS
from ledger.reads.prepared import PreparedReads, PreparedStatement
from ledger.reads.stored import RowDict
from ledger.schema import (
    agent,
    agent_live,
    capability_price,
    capability_version,
    columns,
    former_key,
    head,
    reputation,
    revocation,
    stake,
    subnet,
)

# A page of cards is not small.
PAGE_ROWS: Final = 200
# A statement that took its time before a look may be committed after it.
OVERLAP_MS: Final = 2_000
# The database's clock, and the session: a server that was started anew may number transactions
# again that it has lost.
_NOW_MS: Final = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"
_SESSION: Final = "pg_backend_pid() || ' ' || pg_postmaster_start_time()"

# By name: what a look has seen of each kind, as `Look.since` gives it.
Since = Mapping[str, int | str]
SINCE_LIVE: Final = ("live", "session", "unseen")


class Kept:
    """One kind of rows that owners keep.

    Args:
        name: of its rows, and of the parameter with what an earlier look has seen of them.
        query: selects the rows with `key` and `changed`.
        key: columns that are unique together, the last one by itself: the order of a whole read.
        changed: the column that grows with each change, the order of what has changed; None:
            `changed_id`.
        is_changed: what has changed since an earlier look; None: what is above it.
    """

    def __init__(
        self,
        name: str,
        query: sql.Select[Any],
        *key: sql.ColumnElement[Any],
        changed: sql.ColumnElement[int] | None = None,
        is_changed: sql.ColumnElement[bool] | None = None,
    ) -> None:
        self.name = name
        changed = query.selected_columns["changed_id"] if changed is None else changed
        if is_changed is None:
            is_changed = changed > sql.bindparam(name, type_=sql.BigInteger)
        self.has_changed = sql.exists().where(is_changed)
        self._whole = _Paged(query, *key)
        self._changes = _Paged(query.where(is_changed), changed, key[-1])

    async def pages(
        self, reads: PreparedReads, since: Since | None = None, *, page_rows: int = PAGE_ROWS
    ) -> AsyncIterator[list[RowDict]]:
        """Yield the rows page by page: neither side's memory grows with the table.

        Args:
            since: what an earlier look has seen: the rows that have changed; None: all rows.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        paged = self._whole if since is None else self._changes
        last = paged.start
        while True:
            values = {**(since or {}), **last, "page_rows": page_rows}
            rows = await reads.rows(paged.statement, values)
            if rows:
                yield rows
            if len(rows) < page_rows:
                return
            last = {name: rows[-1][name.removeprefix("after_")] for name in paged.start}


class _Paged:
    """The statement that reads the rows after a place, and the place before all rows."""

    def __init__(self, query: sql.Select[Any], *place: sql.ColumnElement[Any]) -> None:
        self.start: dict[str, int | str] = {
            f"after_{one.key}": "" if isinstance(one.type, sql.Text) else 0 for one in place
        }
        after = (
            sql.bindparam(name, type_=one.type) for name, one in zip(self.start, place, strict=True)
        )
        page = query.where(sql.tuple_(*place) > sql.tuple_(*after))
        limit = sql.bindparam("page_rows", type_=sql.Integer)
        self.statement = PreparedStatement.of(page.order_by(*place).limit(limit))


# Agents as dispatching needs them, in the order of registration, whatever their status: who was
# deregistered is known as such. Of the keys before the current one only the last can be valid.
AGENTS: Final = Kept(
    "agents",
    sql.select(
        *columns(agent, "did owner_did card endpoint public_key signing_secret status"),
        *columns(agent, "registered_ms updated_ms changed_id"),
        # Trust does not pass to an heir.
        sql.and_(
            agent.c.is_trusted,
            sql.func.coalesce(agent.c.inherited_from_did, agent.c.owner_did) == agent.c.owner_did,
        ).label("is_trusted"),
        agent.c.proven_by.is_not(None).label("is_proven"),
        sql.case((subnet.c.policy_type == "private", agent.c.subnet_id)).label("private_subnet"),
        former_key.c.public_key.label("former_key"),
        former_key.c.valid_until_ms.label("former_until_ms"),
    ).select_from(
        agent.outerjoin(
            former_key,
            (former_key.c.agent_did == agent.c.did)
            & (former_key.c.number == agent.c.key_number - 1),
        ).outerjoin(subnet, subnet.c.id == agent.c.subnet_id)
    ),
    agent.c.registered_ms,
    agent.c.did,
)
PRICES: Final = Kept("prices", sql.select(capability_price), capability_price.c.capability_id)
# Without their schemas.
VERSIONS: Final = Kept(
    "versions",
    sql.select(*columns(capability_version, "id capability_id version status changed_id")),
    capability_version.c.id,
)
REVOCATIONS: Final = Kept(
    "revocations",
    sql.select(*columns(revocation, "did expires_ms ended_ms changed_id")),
    revocation.c.did,
)
REPUTATIONS: Final = Kept("reputations", sql.select(reputation), reputation.c.agent_did)
STAKES: Final = Kept("stakes", STAKE_PARTS, stake.c.agent_did)
# Whole, each with who has joined and its policies.
SUBNETS: Final = Kept(
    "subnets",
    sql.select(
        subnet.c.id,
        subnet.c.policy_type,
        subnet.c.changed_id,
        sql.literal_column(
            "ARRAY(SELECT did FROM callboard.subnet_member m"
            " WHERE m.subnet_id = callboard.subnet.id AND m.status = 'joined')"
        ).label("joined_dids"),
        sql.literal_column(
            "(SELECT coalesce(json_agg(p ORDER BY p.id), '[]') FROM callboard.subnet_policy p"
            " WHERE p.subnet_id = callboard.subnet.id AND p.removed_ms IS NULL)"
        ).label("policies"),
    ),
    subnet.c.id,
)
LIVE: Final = Kept(
    "live",
    sql.select(agent_live),
    agent_live.c.did,
    changed=agent_live.c.updated_ms,
    is_changed=sql.and_(
        agent_live.c.updated_ms
        >= sql.func.least(sql.bindparam("live", type_=sql.BigInteger), sql.literal_column(_NOW_MS))
        - OVERLAP_MS,
        sql.text(
            f"(CAST(:session AS text) <> {_SESSION} OR age(callboard.agent_live.xmin)"
            " <= age(CAST(CAST(:unseen AS text) AS xid8)::xid))"
        ),
    ),
)
# Revocations last: they end work, which agents that were found by the same look may take over.
KINDS: Final = (SUBNETS, AGENTS, PRICES, VERSIONS, LIVE, REPUTATIONS, STAKES, REVOCATIONS)

# What an owner has seen that has read nothing.
NOTHING_SEEN: Final[Since] = {
    **{kind.name: 0 for kind in KINDS},
    "session": "",
    "unseen": "3",
}
# Which kinds have changed since an earlier look, and what this look has seen.
LOOK: Final = PreparedStatement.of(
    sql.select(
        head.c.audit_seq,
        sql.literal_column(_NOW_MS).label("now_ms"),
        sql.literal_column(_SESSION).label("session"),
        sql.literal_column("pg_snapshot_xmin(pg_current_snapshot())::text").label("unseen"),
        *(kind.has_changed.label(kind.name) for kind in KINDS),
    )
)
