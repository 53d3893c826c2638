"""What a bid for a task reads of it: the bidder may be a stranger to its payer."""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sql

from core.settings import Settings
from core.trust.access import Principal
from ledger.reads.stored import RowDict
from serve_app.operations.work.tasks import OPERATIONS
from tests.serve_app.parts import endpoint_of, request

SETTINGS = Settings()
TASK = "0198c0de-0000-7000-8000-000000000001"
WORKFLOW = "0198c0de-0000-7000-8000-000000000002"
PATH = "/v1/tasks/{task_id}/bid"


class Rows:
    """A gateway with one task, and no agent of the bidder's for it; it knows no results."""

    settings = SETTINGS

    def __init__(self) -> None:
        self.read: list[str] = []

    @property
    def reader(self) -> Rows:
        """The rows themselves."""
        return self

    async def rows(self, query: Any, _values: Any = None) -> list[RowDict]:
        """Return the workflow's id, and no agents that may bid."""
        if isinstance(query, sql.TextClause):
            self.read.append("bidders")
            return []
        (table,) = query.get_final_froms()
        self.read.append(table.name)
        return [{"id": WORKFLOW}] if table.name == "workflow" else []

    @property
    def reads(self) -> Rows:
        """The rows themselves."""
        return self

    async def row(self, workflow_id: str) -> RowDict | None:
        """Return what there is without the nodes."""
        self.read.append("manifest")
        return {
            "id": workflow_id,
            "status": "running",
            "manifest": orjson.dumps({"nodes": {"task": {"capabilityId": "cap.x.v1"}}}),
        }

    async def head(self, workflow_id: str, did: str) -> None:
        """Return nothing: another's workflow."""
        self.read.append("head")


class Anybody:
    """Knows every caller as the same one."""

    def recognise(self, *_: object) -> Principal:
        """Return the caller."""
        return Principal("did:net:bidder", "k", frozenset({"workflows:write"}), "unlimited")


async def test_a_bid_reads_no_results_of_the_task() -> None:
    """Thirty strangers' bids for a task with 60 MB of results took 3.6 GB of the replica."""

    found = Rows()
    endpoint = endpoint_of(OPERATIONS, PATH, found, Anybody())
    path, body = PATH.format(task_id=TASK), orjson.dumps({"bidAmount": 1, "etaMs": 5})
    params = {"task_id": TASK}
    status, reply = await request(endpoint, "POST", path, body, path_params=params)
    assert status == 404, reply
    assert found.read == ["workflow", "manifest", "head", "bidders"]
