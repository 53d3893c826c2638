"""The publishers of a simulated world: what each asked for, heard, and was promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.transport.messages import PublishReply, PublishRequest
from core.errors import ErrorCode, ServiceError
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.violation import require


@dataclass(slots=True)
class Client:
    """What the publisher of one workflow asked for and heard."""

    request: PublishRequest
    since_ms: int
    replies: list[PublishReply | ServiceError] = field(default_factory=list)
    is_cancelled: bool = False


def check_clients(
    clients: Sequence[Client], model: LedgerModel, *, is_calm: bool, has_faults: bool
) -> None:
    """Who was promised a workflow has it, under the id that was promised; one per key."""
    stored_of: dict[str, set[str]] = {}
    for client in clients:
        request = client.request
        if request.workflow_id in model.workflows:
            stored_of.setdefault(request.command_key, set()).add(request.workflow_id)
    for client in clients:
        stored = stored_of.get(client.request.command_key, set())
        require(len(stored) <= 1, "one key, two workflows:", stored)
        for reply in client.replies:
            if isinstance(reply, PublishReply):
                require({reply.workflow_id} == stored, "promised", reply, "stored", stored)
            elif reply.code is ErrorCode.INSUFFICIENT_CREDITS:
                require(not stored, "refused, but stored:", client)
            elif reply.code is ErrorCode.INTERNAL_ERROR:
                require(has_faults, "publish:", reply)
            else:  # LEDGER_UNAVAILABLE: stored or not, the same key tells
                codes = (ErrorCode.OVERLOADED, ErrorCode.LEDGER_UNAVAILABLE)
                require(reply.code in codes, "publish:", reply)
        if is_calm:
            require(len(client.replies) == 1, "replies:", client)
