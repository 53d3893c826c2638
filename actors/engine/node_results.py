"""Takes the results that agents submit to `nodeResult`, in the process that owns the workflow.

The first result of an attempt counts, and a repeated result gets the same reply. A late result is
refused. If an agent submits its result after the end of the workflow, the ledger records the
refusal. The reply to an accepted result follows the commit. Reference: money.md (Settlement).
"""

from __future__ import annotations

from collections.abc import Callable

from actors.dispatch.order_inputs import hash_small_inputs
from actors.engine.runner import Runner
from actors.ports import DispatchOrder
from actors.transport.messages import NodeResultReply, NodeResultRequest, SettlementRequest
from actors.values.reply_events import check_signature, spare_refusal
from actors.workflows.dispatch_orders import rebuild_order_to_judge
from actors.workflows.running_workflow import RunningWorkflow
from actors.workflows.step_commands import quarantined_error, rereading_error
from core.errors import ErrorCode, ServiceError
from core.json_text import read_json
from core.workflow.events import (
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Failure,
    VerificationFinished,
)
from core.workflow.transitions import NodeStatus
from core.workflow.verdict import find_verdict
from core.workflow.workflow_state import is_open
from ledger.commands import Outcome, OutcomeStatus

Done = Callable[[NodeResultReply | ServiceError | None], None]


def take_result(runner: Runner, request: NodeResultRequest, now_ms: int, done: Done) -> None:
    """Take a submitted result.

    1. If the workflow has ended, the result is refused. If an agent sent the result, the ledger
       records the refusal.
    2. If the attempt or the verification is open, the result becomes its event.
    3. If an earlier result of the attempt was taken, this result gets the same reply. The reply
       follows the commit of the earlier result.
    4. If the attempt was decided without this result, the result is refused.

    Args:
        done: receives the reply after the commit, or None if the workflow is not driven here.
    """
    run = runner.find_run(request.workflow_id)
    if run is not None and not run.is_stored:
        # The run of a repeated publish may be behind the rows.
        done(rereading_error(request.workflow_id))
        return
    if request.is_late or (run is not None and _has_ended(run, request)):  # 1
        if isinstance(request, SettlementRequest):  # only late results of agents are recorded
            done(escrow_released_error(request.workflow_id))
        else:
            _refuse_late(runner, request, done)
        return
    if run is None:
        is_kept = runner.is_quarantined(request.workflow_id)
        done(quarantined_error(request.workflow_id) if is_kept else None)
        return
    state = run.machine.node(request.node)
    if _is_open(run, request):  # 2

        def committed(is_applied: bool) -> None:
            done(NodeResultReply(status=state.status) if is_applied else None)

        by = None
        if isinstance(request, SettlementRequest):
            by = request.actor_did, request.authority
        event = _build_event(runner, run, request, now_ms)
        runner.receive(request.workflow_id, event, committed, by)
        return
    is_same = state.attempt == request.attempt and not request.verify_attempt
    if is_same and (state.status is NodeStatus.SUCCESS or state.has_result):  # 3
        key = f"again:{request.workflow_id}:{request.node}:{request.attempt}:{now_ms}"
        reply = NodeResultReply(status=state.status, is_repeat=True)

        def confirmed(outcome: Outcome) -> None:
            is_known = outcome.error is None and outcome.status is not OutcomeStatus.STALE
            done(reply if is_known else None)

        runner.commit_empty_step(request.workflow_id, key, confirmed)
        return
    done(already_settled_error(request.node, request.attempt, state.status))  # 4


def find_order_to_judge(runner: Runner, request: NodeResultRequest) -> DispatchOrder | None:
    """Return the order whose outputSchema must validate a result; None if none must do so."""
    run = runner.find_run(request.workflow_id)
    if run is None or request.failure is not None or request.verify_attempt:
        return None
    if isinstance(request, SettlementRequest):  # the payer has no result to judge
        return None
    order = run.orders.get((request.node, False)) or rebuild_order_to_judge(run, request.node)
    if order is None or not order.output_schema or order.attempt != request.attempt:
        return None
    return order


def already_settled_error(node: str, attempt: int, status: str) -> ServiceError:
    """Return the error of a result for an attempt that was decided without it."""
    return ServiceError(
        ErrorCode.ALREADY_SETTLED,
        f"attempt {attempt} of node {node!r} was decided without this result; the node is {status}",
    )


def escrow_released_error(workflow_id: str) -> ServiceError:
    """Return the error of a result that arrived after its workflow's end."""
    return ServiceError(
        ErrorCode.ESCROW_RELEASED,
        f"workflow {workflow_id} has ended and its escrow is released: the result is discarded",
    )


def _refuse_late(runner: Runner, request: NodeResultRequest, done: Done) -> None:
    # One key per attempt: repeats leave one record.
    key = f"late:{request.workflow_id}:{request.node}:{request.attempt}:{request.verify_attempt}"

    def confirmed(outcome: Outcome) -> None:
        done(
            escrow_released_error(request.workflow_id)
            if outcome.error is ErrorCode.ESCROW_RELEASED
            else None
        )

    runner.commit_empty_step(request.workflow_id, key, confirmed)


def _has_ended(run: RunningWorkflow, request: NodeResultRequest) -> bool:
    """Say whether the workflow has ended without this result; the end may not be committed yet."""
    state = run.machine.node(request.node)
    is_taken = state.status is NodeStatus.SUCCESS and state.attempt == request.attempt
    return run.machine.is_finished and not is_taken


def _is_open(run: RunningWorkflow, request: NodeResultRequest) -> bool:
    state = run.machine.node(request.node)
    if isinstance(request, SettlementRequest) and not state.is_accepted:
        return False  # the agent still has an open request, which may succeed
    return is_open(state, request.attempt, request.verify_attempt)


def _build_event(
    runner: Runner, run: RunningWorkflow, request: NodeResultRequest, now_ms: int
) -> Event:
    node, attempt, failure = request.node, request.attempt, request.failure
    state = run.machine.node(node)
    # The start time may be from another machine's clock, or this clock may have been set back.
    now_ms = max(now_ms, state.verify_dispatched_ms or 0, state.started_ms or 0)
    if request.verify_attempt:
        began_ms = now_ms if state.verify_dispatched_ms is None else state.verify_dispatched_ms
        text = request.result_json  # None for a large result, which is never a valid verdict
        verdict = find_verdict(read_json(text)) if failure is None and text is not None else None
        return VerificationFinished(
            node, attempt, verdict, failure, began_ms, now_ms, request.verify_attempt
        )
    began_ms = min(now_ms, state.started_ms or state.dispatched_ms or now_ms)
    # A wrong signature is fraud, so that failure precedes any other failure of the result.
    checked = _check_signature(runner, run, request)
    failure = checked if isinstance(checked, Failure) else failure
    if failure is not None:
        order = run.orders.get((node, False))
        spared = failure if order is None else spare_refusal(order, failure)
        return AttemptFailed(node, attempt, spared, began_ms, now_ms)
    return AttemptSucceeded(
        node,
        attempt,
        request.result_json,
        state.input_hash or _hash_inputs(run, node),
        request.output_hash,
        began_ms,
        now_ms,
        # The clock of the process that started the attempt may be ahead.
        {**request.metrics, "latency_ms": max(0, now_ms - began_ms)},
        request.result_ref,
        isinstance(request, SettlementRequest),
        request.named_micro if isinstance(request, SettlementRequest) else None,
        request.signature if isinstance(checked, str) else None,
        checked if isinstance(checked, str) else None,
    )


def _check_signature(
    runner: Runner, run: RunningWorkflow, request: NodeResultRequest
) -> Failure | str | None:
    """Check the signature of a result, if the result itself is signed and its order is known.

    Returns: the result of `check_signature`; None if there is nothing to check.
    """
    order = run.orders.get((request.node, False))
    if request.signature is None or request.is_request_signed or order is None:
        return None
    return check_signature(
        order,
        request.signature,
        request.public_key,
        request.output_hash,
        runner.valid_keys(order.agent_did),
        is_wide=lambda: request.is_wide,
    )


def _hash_inputs(run: RunningWorkflow, node: str) -> str | None:
    """Return the hash of the sent inputs, for a result that arrives before the agent's 202."""
    order = run.orders.get((node, False))
    if order is None or order.sources is None:
        return None
    return hash_small_inputs(order.sources)
