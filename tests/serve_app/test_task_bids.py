"""What a bid for a task reads of it: the bidder may be a stranger to its payer."""

from __future__ import annotations

from typing import Any, cast

import orjson
import sqlalchemy as sql

from actors.gateway.gateway import Gateway
from core.settings import Settings
from core.trust.access import Principal
from core.trust.deployment_keys import DeploymentKeys
from ledger.reads.stored import RowDict
from ledger.replies import ReplyStore
from serve_app.callers.admission import Admission
from serve_app.callers.auth import Authenticator
from serve_app.callers.limits import RateLimiter
from serve_app.callers.peers import Peers
from serve_app.http.endpoint import Endpoint
from serve_app.operations.agents.heartbeat_store import Heartbeats
from serve_app.operations.work.tasks import OPERATIONS
from serve_app.services import Services
from tests.serve_app.bounded import run

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

    async def rows(self, query: Any) -> list[RowDict]:
        """Return the workflow's id, and no agents that may bid."""
        if isinstance(query, sql.CompoundSelect):
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


def test_a_bid_reads_no_results_of_the_task() -> None:
    """Thirty strangers' bids for a task with 60 MB of results took 3.6 GB of the replica."""

    async def scenario() -> None:
        found = Rows()
        services = Services(
            cast(Gateway, found),
            cast(Authenticator, Anybody()),
            cast(RateLimiter, RateLimiter(SETTINGS, cast(Any, None))),
            cast(Heartbeats, None),
            cast(ReplyStore, None),
            Admission(SETTINGS),
            Peers(DeploymentKeys()),
        )
        endpoint = Endpoint([one for one in OPERATIONS if one.path == PATH], services)
        sent: list[Any] = []

        async def receive() -> Any:
            body = orjson.dumps({"bidAmount": 1, "etaMs": 5})
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        path = PATH.format(task_id=TASK)
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "path_params": {"task_id": TASK},
            "headers": [(b"content-type", b"application/json")],
            "client": ("192.0.2.1", 1),
        }
        await endpoint(scope, receive, send)
        assert sent[0]["status"] == 404, sent[1]["body"]
        assert found.read == ["workflow", "manifest", "head", "bidders"]

    run(scenario)
