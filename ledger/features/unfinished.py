"""The unfinished workflows of shards, page by page, as a member needs them to drive them on.

No read holds more than a page: bounded by workflows, by their nodes' rows and by bytes, whatever a
shard has. Pages follow each other by deadline and id, so that no deadline waits behind later ones,
and so that each page is read, and repeated when it fails, by itself. To go on, a member needs to
know which agents have had a node: its row names those that failed it finally and the one that had
it last; the others that had an attempt, of whom there may be three altogether, are in the history.
Decision fairness-and-long-work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sql
from sqlalchemy import BigInteger, Integer, Uuid
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from ledger.reads.reader import LedgerReader
from ledger.reads.stored import IDS, StoredWorkflow, workflow_select
from ledger.schema import attempt, node, workflow


class PageKey(NamedTuple):
    """A workflow by its place in the order of pages."""

    deadline_ms: int
    workflow_id: str


class _Sized(NamedTuple):
    """A workflow that is to be read, with the rows of its nodes and its bytes."""

    key: PageKey
    nodes: int
    size: int


_BEFORE_ALL: Final = PageKey(-1, "00000000-0000-0000-0000-000000000000")

_IS_UNFINISHED: Final = sql.and_(
    # Spelt as the index is, and as `core/shards/shard.py` counts.
    sql.any_(sql.bindparam("shards", type_=ARRAY(Integer)))
    == sql.func.get_byte(sql.func.uuid_send(workflow.c.id), 7),
    workflow.c.completed_ms.is_(None),  # spelt as the partial index is
)
_ORDER: Final = (workflow.c.deadline_ms, workflow.c.id)


def _sizes() -> sql.Select[Any]:
    """Select what the next page may hold: keys, each with its nodes' rows and bytes."""
    after = sql.tuple_(
        sql.bindparam("after_ms", type_=BigInteger),
        sql.bindparam("after_id", type_=Uuid(as_uuid=False)),
    )
    page = (
        sql.select(
            workflow.c.deadline_ms,
            workflow.c.id,
            (
                sql.func.octet_length(workflow.c.manifest)
                + sql.func.octet_length(workflow.c.reserved)
            ).label("own"),
        )
        .where(_IS_UNFINISHED, sql.tuple_(*_ORDER) > after)
        .order_by(*_ORDER)
        .limit(sql.bindparam("most"))
        .subquery()
    )
    nodes = (
        sql.select(
            sql.func.count().label("nodes"),
            # Of a long text the length is known without its text.
            sql.func.coalesce(sql.func.sum(sql.func.octet_length(node.c.result_json)), 0).label(
                "results"
            ),
        )
        .where(node.c.workflow_id == page.c.id)
        .lateral()
    )
    return (
        sql.select(
            page.c.deadline_ms,
            page.c.id,
            nodes.c.nodes,
            (page.c.own + nodes.c.results).label("bytes"),
        )
        .select_from(page.join(nodes, sql.true()))
        .order_by(page.c.deadline_ms, page.c.id)
    )


def _nodes_to_resume() -> sql.Select[Any]:
    """Select node rows, with the agents of each node's attempts, repeated, in order.

    Grouped once for all of them: a look per node would read a large workflow's history each time.
    """
    used = (
        sql.select(
            attempt.c.workflow_id,
            attempt.c.node,
            sql.func.array_agg(aggregate_order_by(attempt.c.agent_did, attempt.c.id)).label("dids"),
        )
        .where(attempt.c.workflow_id == IDS, attempt.c.kind == "primary")
        .group_by(attempt.c.workflow_id, attempt.c.node)
        .subquery()
    )
    is_its_own = sql.and_(used.c.workflow_id == node.c.workflow_id, used.c.node == node.c.name)
    return (
        sql.select(node)
        .where(node.c.workflow_id == IDS)
        .add_columns(used.c.dids.label("agents_used"))
        .outerjoin(used, is_its_own)
    )


# Made once: making a statement costs as much as running it.
_SIZES: Final = _sizes()
_WORKFLOWS: Final = (
    workflow_select(with_manifest=True)
    .where(workflow.c.id == IDS, _IS_UNFINISHED)
    .order_by(*_ORDER)
)
_NODES: Final = _nodes_to_resume()


class UnfinishedPages:
    """The unfinished workflows of some shards; one page is read at a time.

    What a look at sizes finds is kept for the pages that follow: with large workflows a page holds
    few of them, and the next look would size the others again.

    Args:
        reader: of the ledger's rows.
        shards: their numbers.
    """

    # Of one look at sizes, and so of a page.
    workflows_max = 100
    # What a process turns into rows within a few milliseconds. A single workflow may have more.
    nodes_max = 300
    bytes_max = 2 * 1024 * 1024

    def __init__(self, reader: LedgerReader, shards: Collection[int]) -> None:
        self._reader = reader
        self._shards = sorted(set(shards))
        # In the order of pages, all of them behind the page before.
        self._sized: list[_Sized] = []
        self._is_all_sized = False

    async def page(self, after: PageKey | None) -> tuple[list[StoredWorkflow], PageKey | None]:
        """Return some unfinished workflows by deadline, and where the next page begins.

        Args:
            after: as the page before returned it; None for the first page, which looks anew at
                what there is.

        Returns: the workflows, and `after` of the next page, None when there is none.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; the page can be read again.
        """
        sized = [] if after is None else [one for one in self._sized if one.key > after]
        if after is None or not (sized or self._is_all_sized):
            sized = await self._look_at_sizes(after or _BEFORE_ALL)
            self._is_all_sized = len(sized) < self.workflows_max
        self._sized = sized
        count = self._count_of_page(sized)
        found = await self.by_ids([one.key.workflow_id for one in sized[:count]])
        is_last = count == len(sized) and self._is_all_sized
        return found, None if is_last else sized[count - 1].key

    async def by_ids(self, ids: Collection[str]) -> list[StoredWorkflow]:
        """Return those of these workflows that are unfinished and in the shards, by deadline.

        Args:
            ids: workflow ids, at most some hundred.
        """
        if not ids:
            return []
        values = {"ids": list(ids)}
        # The workflow first: read the other way round, a workflow could be over and its node not.
        rows = await self._reader.rows(_WORKFLOWS, {**values, "shards": self._shards})
        found = {str(row["id"]): StoredWorkflow(row) for row in rows}
        for row in await self._reader.rows(_NODES, {"ids": list(found)}) if found else ():
            found[row["workflow_id"]].nodes.append(row)
        return list(found.values())

    async def _look_at_sizes(self, start: PageKey) -> list[_Sized]:
        values = {
            "shards": self._shards,
            "after_ms": start.deadline_ms,
            "after_id": start.workflow_id,
            "most": self.workflows_max,
        }
        return [
            _Sized(PageKey(row["deadline_ms"], str(row["id"])), row["nodes"], row["bytes"])
            for row in await self._reader.rows(_SIZES, values)
        ]

    def _count_of_page(self, sized: Sequence[_Sized]) -> int:
        rows = size = 0
        for count, one in enumerate(sized):
            rows += one.nodes
            size += one.size
            if count and (rows > self.nodes_max or size > self.bytes_max):
                return count
        return len(sized)
