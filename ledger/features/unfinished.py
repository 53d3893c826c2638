"""Reads the unfinished workflows of shards page by page, for a member that takes over the shards.

A page is limited in workflows, in rows of nodes and in bytes. Pages are in the order of deadline
and id, so that workflows with an early deadline are read first. If the read of a page fails, only
this page is read again. To continue a workflow, a member must know which agents have worked on each
node. The node's row names the agents that are given up for the node, and the last agent. The
history of attempts names the others. Decision fairness-and-long-work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader
from ledger.reads.stored import WORKFLOWS, StoredWorkflow
from ledger.schema import typed


class PageKey(NamedTuple):
    """The position of a workflow in the order of pages."""

    deadline_ms: int
    workflow_id: str


class _Sized(NamedTuple):
    """A workflow to be read, with its number of node rows and its bytes."""

    key: PageKey
    nodes: int
    size: int


_BEFORE_ALL: Final = PageKey(-1, "00000000-0000-0000-0000-000000000000")

# Spelled as in the indexes; the shard is that of `core/shards/shard.py`.
_IS_UNFINISHED: Final = """get_byte(uuid_send(workflow.id), 7) = ANY (CAST(:shards AS integer[]))
    AND workflow.completed_ms IS NULL"""
_IS_ASKED: Final = "workflow_id = ANY (CAST(:ids AS uuid[]))"
# The candidates of the next page, each with its number of node rows and its bytes. The length of a
# long text is read without the text.
_SIZES: Final = sql.text(f"""
    SELECT page.deadline_ms, page.id, nodes.count AS nodes, page.own + nodes.results AS bytes
    FROM (
        SELECT deadline_ms, id, octet_length(manifest) + octet_length(reserved) AS own
        FROM callboard.workflow
        WHERE {_IS_UNFINISHED} AND (deadline_ms, id) > (:after_ms, CAST(:after_id AS uuid))
        ORDER BY deadline_ms, id LIMIT :most
    ) AS page CROSS JOIN LATERAL (
        SELECT count(*), coalesce(sum(octet_length(result_json)), 0) AS results
        FROM callboard.node WHERE workflow_id = page.id
    ) AS nodes ORDER BY page.deadline_ms, page.id
""").bindparams(*typed(bigint="after_ms"))
_WORKFLOWS: Final = sql.text(f"""
    {WORKFLOWS} WHERE workflow.id = ANY (CAST(:ids AS uuid[])) AND {_IS_UNFINISHED}
    ORDER BY workflow.deadline_ms, workflow.id
""")
# Node rows, each with the agents of its attempts, in order and with repetitions. Attempts are
# grouped once for all nodes. A subquery per node would read the history of a large workflow for
# each of its nodes.
_NODES: Final = sql.text(f"""
    SELECT n.*, used.dids AS agents_used FROM callboard.node n LEFT JOIN (
        SELECT workflow_id, node, array_agg(agent_did ORDER BY id) AS dids
        FROM callboard.attempt WHERE {_IS_ASKED} AND kind = 'primary' GROUP BY workflow_id, node
    ) AS used ON used.workflow_id = n.workflow_id AND used.node = n.name WHERE n.{_IS_ASKED}
""")


class UnfinishedPages:
    """The unfinished workflows of some shards, read one page at a time.

    One read of sizes serves several pages. A page has few workflows if they are large. Reading all
    sizes again for each page would be wasteful.

    Args:
        reader: reads the ledger's rows.
        shards: the numbers of the shards.
    """

    # Workflows per read of sizes, and therefore the maximum per page.
    workflows_max = 100
    # A process converts such a page within a few milliseconds. A page of one workflow may be
    # larger.
    nodes_max = 300
    bytes_max = 2 * 1024 * 1024

    def __init__(self, reader: LedgerReader, shards: Collection[int]) -> None:
        self._reader = reader
        self._shards = sorted(set(shards))
        # The workflows after the previous page, in the order of pages.
        self._sized: list[_Sized] = []
        self._is_all_sized = False

    async def page(self, after: PageKey | None) -> tuple[list[StoredWorkflow], PageKey | None]:
        """Return a page of unfinished workflows by deadline, and the position at which the next
        page begins.

        Args:
            after: the second value that the previous page returned; None: the first page.

        Returns: the workflows, and `after` of the next page, None at the end.

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
        """Return those of the given workflows that are unfinished and in the shards, by deadline.

        Args:
            ids: workflow ids, at most some hundred.
        """
        if not ids:
            return []
        values = {"ids": list(ids)}
        # Workflows are read first, so that the row of a node is never older than its workflow's.
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
