"""The rows that every owner process caches in its directory, and how the process follows their
changes.

Decisions postgres and agent-health-and-waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

import psycopg

from ledger.connections.connect import connect
from ledger.features.accounts import STAKE_PARTS
from ledger.reads.prepared_reads import PreparedReads
from ledger.reads.stored import RowDict
from ledger.schema import READER_ROLE, driver_url, session_options

# An owner process reads all rows of a kind, or only the rows that changed since an earlier poll. A
# poll is one statement that says which kinds have changed (`LOOK`). The writer stores in each row,
# as `changed_id`, the audit id of the batch that changed it. These ids are in the order of the
# commits. So the changed rows are those above the newest id that the process has seen. Heartbeats
# and probes have several writers and no audit entries. Their changes are found by the time in the
# row, and by the transactions that the earlier poll could not see.

# Rows per page; small, because rows of agents contain cards.
PAGE_ROWS: Final = 200
# A transaction may read the clock before a poll, and be committed after the poll.
OVERLAP_MS: Final = 2_000
# The database's clock. The session, because a restarted server may use transaction numbers again
# that it has lost.
_NOW_MS: Final = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"
_SESSION: Final = "pg_backend_pid() || ' ' || pg_postmaster_start_time()"

# By name of a kind: the position of an earlier poll, as `DirectoryChanges.since` returns it.
Since = Mapping[str, int | str]
SINCE_LIVE: Final = ("live", "session", "unseen")


class Kept:
    """One kind of rows that owner processes cache.

    Args:
        name: the name of the kind, and of the parameter that has the position of an earlier poll.
        table: the table whose changes count.
        key: columns of `query` that are unique together, each with a value below all its values;
            the last one is unique alone. The order of a whole read.
        query: the rows, as SQL; None: the table's.
        changed: the column that grows with each change, the order of the changed rows.
        is_changed: the condition of rows `one` that have changed since an earlier poll; None:
            `changed` is above the parameter.
    """

    def __init__(
        self,
        name: str,
        table: str,
        key: Mapping[str, int | str],
        query: str | None = None,
        *,
        changed: str = "changed_id",
        is_changed: str | None = None,
    ) -> None:
        self.name = name
        is_changed = is_changed or f"{changed} > %({name})s::bigint"
        self.has_changed = f"EXISTS (SELECT FROM callboard.{table} one WHERE {is_changed})"
        query = query or f"SELECT * FROM callboard.{table}"
        last = list(key)[-1]
        self._whole = _Paged(query, "true", key)
        self._changes = _Paged(query, is_changed, {changed: 0, last: key[last]})

    async def pages(
        self, reads: PreparedReads, since: Since | None = None, *, page_rows: int = PAGE_ROWS
    ) -> AsyncIterator[list[RowDict]]:
        """Yield the rows page by page, so that memory does not grow with the table.

        Args:
            since: the position of an earlier poll: only rows that changed after it; None: all rows.

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

    def __init__(self, query: str, condition: str, place: Mapping[str, int | str]) -> None:
        self.start = {f"after_{column}": least for column, least in place.items()}
        after = (
            f"%({name})s::{'text' if least == '' else 'bigint'}"
            for name, least in self.start.items()
        )
        columns = ", ".join(place)
        self.statement = (
            f"SELECT * FROM ({query}) one WHERE {condition} AND ({columns}) > ({', '.join(after)})"
            f" ORDER BY {columns} LIMIT %(page_rows)s"
        )


# The columns of agents that dispatching needs, in the order of registration. Deregistered agents
# are included, so that directories remove them. Of an agent's former keys only the newest can still
# be valid.
AGENTS: Final = Kept(
    "agents",
    "agent",
    {"registered_ms": 0, "did": ""},
    # Trust does not pass to an heir.
    """
    SELECT a.did, a.owner_did, a.card, a.endpoint, a.public_key, a.signing_secret, a.status,
        a.registered_ms, a.updated_ms, a.changed_id, a.is_trusted
            AND coalesce(a.inherited_from_did, a.owner_did) = a.owner_did AS is_trusted,
        a.proven_by IS NOT NULL AS is_proven,
        CASE WHEN s.policy_type = 'private' THEN a.subnet_id END AS private_subnet,
        f.public_key AS former_key, f.valid_until_ms AS former_until_ms
    FROM callboard.agent a
        LEFT JOIN callboard.former_key f ON f.agent_did = a.did AND f.number = a.key_number - 1
        LEFT JOIN callboard.subnet s ON s.id = a.subnet_id
    """,
)
PRICES: Final = Kept("prices", "capability_price", {"capability_id": ""})
# Versions without their schemas.
VERSIONS: Final = Kept(
    "versions",
    "capability_version",
    {"id": ""},
    "SELECT id, capability_id, version, status, changed_id FROM callboard.capability_version",
)
REVOCATIONS: Final = Kept(
    "revocations",
    "revocation",
    {"did": ""},
    "SELECT did, expires_ms, ended_ms, changed_id FROM callboard.revocation",
)
REPUTATIONS: Final = Kept("reputations", "reputation", {"agent_did": ""})
STAKES: Final = Kept("stakes", "stake", {"agent_did": ""}, STAKE_PARTS)
# Each subnet with its joined members and its policies.
SUBNETS: Final = Kept(
    "subnets",
    "subnet",
    {"id": ""},
    """
    SELECT s.id, s.policy_type, s.changed_id,
        ARRAY(SELECT did FROM callboard.subnet_member m
            WHERE m.subnet_id = s.id AND m.status = 'joined') AS joined_dids,
        (SELECT coalesce(json_agg(p ORDER BY p.id), '[]') FROM callboard.subnet_policy p
            WHERE p.subnet_id = s.id AND p.removed_ms IS NULL) AS policies
    FROM callboard.subnet s
    """,
)
LIVE: Final = Kept(
    "live",
    "agent_live",
    {"did": ""},
    "SELECT *, xmin FROM callboard.agent_live",
    changed="updated_ms",
    is_changed=f"updated_ms >= least(%(live)s::bigint, {_NOW_MS}) - {OVERLAP_MS}"
    f" AND (%(session)s::text <> {_SESSION}"
    " OR age(one.xmin) <= age(%(unseen)s::text::xid8::xid))",
)
# Revocations are loaded last. They end work, and agents from the same poll may then take the work
# over.
KINDS: Final = (SUBNETS, AGENTS, PRICES, VERSIONS, LIVE, REPUTATIONS, STAKES, REVOCATIONS)

# The position of an owner process that has read nothing.
NOTHING_SEEN: Final[Since] = {
    **{kind.name: 0 for kind in KINDS},
    "session": "",
    "unseen": "3",
}
# Returns which kinds have changed since an earlier poll, and the positions of this poll.
LOOK: Final = (
    f"SELECT audit_seq, {_NOW_MS} AS now_ms, {_SESSION} AS session,"
    " pg_snapshot_xmin(pg_current_snapshot())::text AS unseen,"
    f" {', '.join(f'{kind.has_changed} AS {kind.name}' for kind in KINDS)} FROM callboard.head"
)


# Following the changes. A poll is one statement, which returns the kinds of rows that have changed
# since an earlier poll. Notices (NOTIFY) arrive on a separate connection, and each notice causes a
# poll. Without notices (a pooler, a lost connection) the follower still polls twice a second.

CHANNEL: Final = "callboard_directory"
LOOK_TIMEOUT_S: Final = 5.0
RECONNECT_S: Final = 0.5


class DirectoryChanges:
    """The result of one poll."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def has_changed(self, kind: Kept) -> bool:
        """Say whether rows of a kind have changed since the earlier poll."""
        return bool(self._row[kind.name])

    def since(self, kind: Kept) -> Since:
        """Return the position of this poll for a kind, for a later poll."""
        if kind is not LIVE:
            return {kind.name: self._row["audit_seq"]}
        seen = (self._row["now_ms"], self._row["session"], self._row["unseen"])
        return dict(zip(SINCE_LIVE, seen, strict=True))


class DirectoryTail:
    """Follows changes over two connections, which are opened when needed and reopened when lost.

    Only one task may poll and wait for notices; other tasks may only call `wake`.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._reads = PreparedReads(url, timeout_s=LOOK_TIMEOUT_S)
        # Set by a notice or by `wake` since the last poll began.
        self._noticed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"DirectoryTail({self._reads!r}, is_noticed={self.is_noticed})"

    @property
    def is_noticed(self) -> bool:
        """True after a notice or a `wake` since the last poll began."""
        return self._noticed.is_set()

    async def close(self) -> None:
        """Close the connections."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        await self._reads.close()

    async def poll(self, since: Since) -> DirectoryChanges:
        """Return which kinds of rows have changed.

        Args:
            since: positions of earlier polls; a kind without a position counts as never read.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        # Cleared before the poll: a later notice may be for a commit that the poll does not see.
        self._noticed.clear()
        (row,) = await self._reads.rows(LOOK, {**NOTHING_SEEN, **since})
        return DirectoryChanges(row)

    def pages(self, kind: Kept, since: Since | None) -> AsyncIterator[list[RowDict]]:
        """Yield the rows of a kind that have changed since a position (None: all rows), page by
        page."""
        return kind.pages(self._reads, since)

    async def wait_notice(self, timeout_s: float) -> None:
        """Return after a notice or `wake` since the last poll began, or after the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._noticed.wait()

    def wake(self) -> None:
        """End the current or next `wait_notice`."""
        self._noticed.set()

    async def _listen(self) -> None:
        """Set the event at each notice, until cancelled. Set it after each connect too, because
        notices may be missed without a connection."""
        while True:
            with suppress(psycopg.Error):  # a poll will report that the database is away
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
