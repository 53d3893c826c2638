"""A step that the ledger cannot take stops its workflow, and nothing else. Decision
ledger-writer."""

from __future__ import annotations

from msgspec.structs import replace

from core.errors import ErrorCode
from core.workflow.events import WorkflowChanged
from core.workflow.transitions import WorkflowStatus
from ledger.commands import OutcomeStatus
from ledger.features.workflow_commands import AdvanceWorkflow, ResumeWorkflow
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    CREDIT,
    MEMBER,
    PAYER,
    Flow,
    NextWriter,
    errors,
    new_key,
)


def resume(flow: Flow) -> ResumeWorkflow:
    return ResumeWorkflow(
        key=new_key(), member=MEMBER, shard_epoch=flow.epoch, workflow_id=flow.id, actor_did=PAYER
    )


def fresh(command: AdvanceWorkflow) -> AdvanceWorkflow:
    return replace(command, is_fresh=True)


def quarantine_of(auditor: Auditor, flow: Flow) -> tuple[object, ...]:
    row = auditor.connection.execute(
        "SELECT status, quarantine_code, quarantined_ms FROM workflow WHERE id = %s", (flow.id,)
    ).fetchone()
    assert row is not None
    return tuple(row)


async def test_step_above_its_escrow_quarantines_its_workflow_and_resume_repeats_it(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow, other = Flow(hold=CREDIT), Flow()
    too_dear = flow.pay(2 * CREDIT)
    outcomes = await store.commit([flow.publish(), other.publish(), too_dear], AT)
    refused = outcomes[2]
    assert (refused.status, refused.error) == (OutcomeStatus.REJECTED, ErrorCode.INTERNAL_ERROR)
    assert refused.result == {"quarantined": "STEP_REFUSED"}
    assert quarantine_of(auditor, flow)[1:] == ("STEP_REFUSED", AT)
    # Neither a later step nor one from fresh rows is taken; another workflow goes on.
    later, from_rows, paid = await store.commit(
        [flow.pay(CREDIT, node="b"), fresh(flow.pay(CREDIT, node="c")), other.pay(CREDIT)], AT
    )
    for one in (later, from_rows):
        assert (one.error, one.result) == (ErrorCode.CONFLICT, refused.result)
    assert paid.error is None
    # Resumed, the same key is free: the step is decided anew.
    (resumed,) = await store.commit([resume(flow)], AT)
    assert resumed.error is None
    (stale,) = await store.commit([flow.pay(CREDIT, node="d")], AT)
    assert stale.error is ErrorCode.CONFLICT, "what was decided before the quarantine"
    assert stale.result == {}
    (taken,) = await store.commit([fresh(flow.pay(CREDIT, key=too_dear.key))], AT)
    assert taken.status is OutcomeStatus.APPLIED
    assert auditor.one(
        "SELECT array_agg(event_type ORDER BY id) FROM event WHERE event_type ~ 'quarant|resum'"
    ) == ["workflow.quarantined", "workflow.resumed"]


async def test_quarantined_workflow_can_only_end_and_its_escrow_returns(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    flow = Flow(hold=CREDIT)
    await store.commit([flow.publish(), flow.pay(2 * CREDIT)], AT)
    # Remembered past the writer's end.
    store = await next_writer()
    cancelled = flow.advance(WorkflowChanged(WorkflowStatus.CANCELLED, AT + 1))
    stale, ended = await store.commit([cancelled, fresh(replace(cancelled, key="end"))], AT)
    # Its owner learns why: without the code it would read the rows and drive the workflow on.
    assert (stale.error, stale.result) == (ErrorCode.CONFLICT, {"quarantined": "STEP_REFUSED"})
    assert ended.result == {"releasedMicro": CREDIT}
    assert quarantine_of(auditor, flow)[:2] == ("cancelled", "STEP_REFUSED")
    assert auditor.balance(PAYER) == 100 * CREDIT
    assert await errors(store, resume(flow)) == [ErrorCode.ESCROW_RELEASED]
