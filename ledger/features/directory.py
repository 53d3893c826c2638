"""The rows that every owner process caches in its directory, and how it follows their changes.

Decisions postgres and agent-health-and-waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

import psycopg
import sqlalchemy as sql

from ledger.connections.connecting import connect
from ledger.features.accounts import STAKE_PARTS
from ledger.reads.prepared import PreparedReads, PreparedStatement
from ledger.reads.stored import RowDict
from ledger.schema import (
    READER_ROLE,
    agent,
    agent_live,
    capability_price,
    capability_version,
    columns,
    driver_url,
    former_key,
    head,
    reputation,
    revocation,
    session_options,
    stake,
    subnet,
)

# Each kind of rows is read either whole, or only the rows that have changed since an earlier look.
# The writer notes in each row, as `changed_id`, the audit id of the batch that changed it. These
# ids are in the order of the commits, so the rows that an owner lacks are those above the newest id
# it has seen. Heartbeats and probes have several writers and no audit entries. Their changes are
# found by the time of the row and by the transactions that the earlier look could not see.

# Rows per page; small, because rows of agents contain cards.
PAGE_ROWS: Final = 200
# A transaction may have read the clock before a look, and be committed after it.
OVERLAP_MS: Final = 2_000
# The database's clock; and the session, because a restarted server may use transaction numbers
# again that it has lost.
_NOW_MS: Final = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"
_SESSION: Final = "pg_backend_pid() || ' ' || pg_postmaster_start_time()"

# By name of a kind: what an earlier look has seen of it, as returned by `Look.since`.
Since = Mapping[str, int | str]
SINCE_LIVE: Final = ("live", "session", "unseen")


class Kept:
    """One kind of rows that owners cache.

    Args:
        name: of the kind, and of the parameter with what an earlier look has seen of it.
        query: selects the rows, with the columns of `key` and `changed`.
        key: columns that are unique together; the last one is unique alone. The order of a whole
            read.
        changed: the column that grows with each change, the order of the changed rows; None:
            `changed_id`.
        is_changed: selects the rows that have changed since an earlier look; None: the rows whose
            `changed` is above the parameter.
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
        """Yield the rows page by page, so that memory does not grow with the table.

        Args:
            since: what an earlier look has seen: only rows changed since; None: all rows.

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
    """The statement that reads the rows after a position, and the position before all rows."""

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


# The columns of agents that dispatching needs, in the order of registration. Deregistered agents
# are included, so that directories learn of it. Of an agent's former keys only the newest can still
# be valid.
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
# Versions without their schemas.
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
# Each subnet with its joined members and its policies.
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
# Revocations are last: they end work, which agents loaded by the same look may take over.
KINDS: Final = (SUBNETS, AGENTS, PRICES, VERSIONS, LIVE, REPUTATIONS, STAKES, REVOCATIONS)

# The position of an owner that has read nothing.
NOTHING_SEEN: Final[Since] = {
    **{kind.name: 0 for kind in KINDS},
    "session": "",
    "unseen": "3",
}
# Returns which kinds have changed since an earlier look, and the positions of this look.
LOOK: Final = PreparedStatement.of(
    sql.select(
        head.c.audit_seq,
        sql.literal_column(_NOW_MS).label("now_ms"),
        sql.literal_column(_SESSION).label("session"),
        sql.literal_column("pg_snapshot_xmin(pg_current_snapshot())::text").label("unseen"),
        *(kind.has_changed.label(kind.name) for kind in KINDS),
    )
)


# Following the changes. A look is one statement, which returns the kinds of rows that have changed
# since an earlier look. Notices (NOTIFY) arrive on a connection of their own and say that it is
# time to look. Without notices (a pooler, a lost connection) the follower still looks twice a
# second.

CHANNEL: Final = "callboard_directory"
LOOK_TIMEOUT_S: Final = 5.0
RECONNECT_S: Final = 0.5


class Look:
    """The result of one look."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def has_changed(self, kind: Kept) -> bool:
        """Say whether rows of a kind have changed since the earlier look."""
        return bool(self._row[kind.name])

    def since(self, kind: Kept) -> Since:
        """Return the position of this look for a kind, for a later look."""
        if kind is not LIVE:
            return {kind.name: self._row["audit_seq"]}
        seen = (self._row["now_ms"], self._row["session"], self._row["unseen"])
        return dict(zip(SINCE_LIVE, seen, strict=True))


class DirectoryTail:
    """Follows changes over two connections, which are opened when needed and reopened when lost.

    Only one task may look and wait for notices; other tasks may only call `wake`.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._reads = PreparedReads(url, timeout_s=LOOK_TIMEOUT_S)
        # Set by a notice or by `wake` since the last look began.
        self._noticed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"DirectoryTail({self._reads!r}, is_noticed={self.is_noticed})"

    @property
    def is_noticed(self) -> bool:
        """True after a notice or a `wake` since the last look began."""
        return self._noticed.is_set()

    async def close(self) -> None:
        """Close the connections."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        await self._reads.close()

    async def look(self, since: Since) -> Look:
        """Return which kinds of rows have changed.

        Args:
            since: positions of earlier looks; a kind without a position counts as never read.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        # Cleared before the look: a later notice may be for a commit that the look does not see.
        self._noticed.clear()
        (row,) = await self._reads.rows(LOOK, {**NOTHING_SEEN, **since})
        return Look(row)

    def pages(self, kind: Kept, since: Since | None) -> AsyncIterator[list[RowDict]]:
        """Yield the rows of a kind that have changed since a position; None: all rows."""
        return kind.pages(self._reads, since)

    async def wait_notice(self, timeout_s: float) -> None:
        """Return after a notice or `wake` since the last look began, or after the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._noticed.wait()

    def wake(self) -> None:
        """End the current or next `wait_notice`."""
        self._noticed.set()

    async def _listen(self) -> None:
        """Note each notice until cancelled. Also wake after each connect, because notices may be
        missed while the connection is away."""
        while True:
            with suppress(psycopg.Error):  # a look will report that the database is away
                async with await connect(
                    driver_url(self._url),
                    options=session_options(READER_ROLE),
                    application_name="callboard-tail",
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self.wake()
                    async for _ in connection.notifies():
                        self.wake()
            self.wake()
            await asyncio.sleep(RECONNECT_S)
