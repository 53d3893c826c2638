"""Operations about work: workflows, tasks, auctions and triggers.

Reference: features.md (Workflows, Triggers, Schedules); money.md (Auctions).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from callboard import replies
from callboard.calls import (
    PREFER_WAIT_S_MAX,
    Call,
    Steps,
    keyed,
    segment,
    single,
)
from callboard.operations.declaring import (
    Iteration,
    listing,
    listing_of,
    operation,
    reading,
    sending,
)
from callboard.replies import FINISHED, Credits
from core.records.api.record import PageQuery
from core.records.api.shape import Json, json_name

# A service that answers before the wait it was asked for is asked again no faster than this.
POLL_PAUSE_S = 0.25


class WorkOperations:
    """The work that the caller publishes, bids for and schedules."""

    @operation(replies.Suggestion)
    def suggest(self, description: str) -> Steps:
        """Draft a workflow from a description in words; nothing is stored.

        Reference: features.md (Planning).
        """
        body = {"description": description}
        # The service may ask a model, which takes its time.
        return single(Call("POST", "/v1/workflows/suggest", body=body, wait_s=60.0))

    @operation(replies.BulkPublished)
    def publish_bulk(
        self, manifests: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> Steps:
        """Publish up to 1,000 workflows; `results` has a reply or a problem for each, in order."""
        body = {"workflows": [dict(manifest) for manifest in manifests]}
        path = "/v1/workflows/publish/bulk"
        return single(Call("POST", path, body=body, headers=keyed(idempotency_key), wait_s=60.0))

    workflow = reading("/v1/workflows/{}", replies.Workflow)
    budget = reading("/v1/workflows/{}/budget", replies.Budget)
    workflows = listing("/v1/workflows", replies.WorkflowsQuery, replies.WorkflowPage)
    trace = listing_of("/v1/traces/{}", replies.TraceQuery, replies.TracePage)

    @operation(replies.Workflow)
    def wait(self, workflow_id: str, *, timeout_s: float | None = None) -> Steps:
        """Return the record when the workflow has ended, or as it is after `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.0
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            held_s = PREFER_WAIT_S_MAX if left_s is None else min(left_s, PREFER_WAIT_S_MAX)
            asked_at = time.monotonic()
            reply = yield Call(
                "GET",
                f"/v1/workflows/{segment(workflow_id)}",
                headers={"Prefer": f"wait={held_s:g}"},
                wait_s=held_s,
                pause_s=pause_s if left_s is None else min(pause_s, left_s),
            )
            record: Json = reply.body
            if record.get("status") in FINISHED or (left_s is not None and left_s <= 0):
                return record
            pause_s = 0.0 if time.monotonic() - asked_at > POLL_PAUSE_S else POLL_PAUSE_S

    @sending("POST", "/v1/workflows/{workflow_id}/cancel", replies.Cancelled)
    def cancel(self, workflow_id: str, *, reason: str = "user_request", details: str = "") -> None:
        """Cancel a workflow; what is left in its escrow returns. Reference: features.md
        (Cancellation)."""

    @sending("POST", "/v1/workflows/{workflow_id}/resume", replies.Resumed)
    def resume(self, workflow_id: str) -> None:
        """Drive a quarantined workflow on."""

    @operation(replies.NodeResultTaken)
    def node_result(
        self,
        workflow_id: str,
        node_id: str,
        result_id: str,
        *,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
        code: str | None = None,
        metrics: Mapping[str, Any] | None = None,
        agent_did: str | None = None,
        signature: str | None = None,
        public_key: str | None = None,
    ) -> Steps:
        """Hand in the result of a dispatch that was accepted before, or its error.

        Args:
            result_id: the dispatch's `resultId`, which is the credential.
            signature: the agent's, over the result; `public_key` is the key it was made with.

        Reference: features.md (Asynchronous results).
        """
        members = {"error": error, "code": code, "metrics": metrics, "agentDid": agent_did}
        members |= {"signature": signature, "publicKey": public_key}
        body: Json = {"workflowId": workflow_id, "nodeId": node_id, "resultId": result_id}
        body |= {name: value for name, value in members.items() if value is not None}
        body["status"] = "success" if error is None else "error"
        if error is None:
            body["result"] = dict(result or {})
        # Without a key, the same error again is refused as ALREADY_SETTLED although it was taken.
        headers = {} if error is None else keyed(None)
        return single(Call("POST", "/v1/workflows/nodeResult", body=body, headers=headers))

    @sending("POST", "/v1/tasks/publish", replies.TaskPublished, budget_credits="budget")
    def publish_task(
        self,
        description: str,
        *,
        budget_credits: Credits | None = None,
        selection: str | None = None,
        auction_window_ms: int | None = None,
    ) -> None:
        """Publish one task described in words; `[cap.id]` before them names its capability.

        Args:
            budget_credits: what it may cost.
            selection: `best`, or `auction`.
            auction_window_ms: how long live bids are taken.
        """

    task = reading("/v1/tasks/{}", replies.Task)

    @sending(
        "POST",
        "/v1/tasks/{task_id}/bid",
        replies.Bid,
        amount_credits="bidAmount",
        stake_credits="stakeOffered",
    )
    def bid_for_task(
        self,
        task_id: str,
        amount_credits: Credits,
        *,
        node_id: str | None = None,
        eta_ms: int | None = None,
        stake_credits: Credits | None = None,
        agent_did: str | None = None,
    ) -> None:
        """Bid for a task whose node is auctioned, sealed, as with `bid`.

        Args:
            amount_credits: what the agent asks for.
            node_id: which node, where the task is a workflow of several.
            eta_ms: how long it expects to take.
            stake_credits: the most it puts at stake for this node; as much as is asked if absent.
            agent_did: who bids; the caller if absent.
        """

    @sending("GET", "/v1/auctions/{workflow_id}/{node_id}", replies.Auction)
    def auction(self, workflow_id: str, node_id: str) -> None:
        """Read the auction of a node; its bids when it has closed."""

    @sending(
        "POST",
        "/v1/auctions/{workflow_id}/{node_id}/bids",
        replies.Bid,
        amount_credits="bidAmount",
        stake_credits="stakeOffered",
    )
    def bid(
        self,
        workflow_id: str,
        node_id: str,
        amount_credits: Credits,
        *,
        eta_ms: int | None = None,
        stake_credits: Credits | None = None,
        agent_did: str | None = None,
    ) -> None:
        """Bid for a node, sealed. Reference: money.md (Auctions).

        Args:
            amount_credits: what the agent asks for.
            eta_ms: how long it expects to take.
            stake_credits: the most it puts at stake for this node; as much as is asked if absent.
            agent_did: who bids; the caller if absent.
        """

    @sending("POST", "/v1/workflows/{workflow_id}/feedback", replies.Feedback)
    def give_feedback(
        self,
        workflow_id: str,
        agent_did: str,
        rating: float,
        *,
        scale: int | None = None,
        comment: str | None = None,
    ) -> None:
        """Rate an agent's work in a workflow.

        Args:
            rating: 0 to 1, or 1 to 5.
            scale: 1 or 5, what the rating is out of; needed for one star of five.
        """

    @sending("POST", "/v1/schedules", replies.TriggerChanged)
    def create_schedule(
        self,
        name: str,
        cron_expression: str,
        workflow_template: Mapping[str, Any],
        *,
        timezone: str | None = None,
        max_runs: int | None = None,
        overlap_policy: str | None = None,
        catch_up_window_ms: int | None = None,
        jitter_ms: int | None = None,
        daily_budget_credits: float | str | None = None,
        enabled: bool | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Create a schedule; its runs are paid by the caller.

        Args:
            cron_expression: five fields as in cron.
            workflow_template: a manifest, or `{"capability": …, "input": {…}}`.
            timezone: of the expression, an IANA name; None: UTC.
            overlap_policy: `skip`, `queue` or `allow`: what a due time does while a run goes on.
            daily_budget_credits: most that the runs of one UTC day may hold.
        """

    schedule = reading("/v1/schedules/{}", replies.Trigger)
    schedules = listing("/v1/schedules", replies.TriggersQuery, replies.SchedulePage)

    @sending("POST", "/v1/schedules/{schedule_id}/trigger", replies.RunStarted)
    def start_run(self, schedule_id: str, *, idempotency_key: str | None = None) -> None:
        """Start a run of a schedule now; no due time moves."""

    @sending("GET", "/v1/schedules/{schedule_id}/next", replies.DueTimes)
    def due_times(self, schedule_id: str, *, n: int | None = None) -> None:
        """Read the next due times of a schedule.

        Args:
            n: how many, 1 to 100; None: 10.
        """

    @operation(replies.TemplateStored)
    def create_trigger(
        self, manifest: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> Steps:
        """Store a template and its trigger; the reply to one of type `webhook` has the `hookUrl`.

        Args:
            manifest: the workflow manifest of the runs; its `trigger` is not manual.
        """
        path, headers = "/v1/workflows/publish", keyed(idempotency_key)
        return single(Call("POST", path, body=dict(manifest), headers=headers))

    @operation(replies.RunStarted)
    def call_hook(
        self, hook_url: str, payload: Any, *, idempotency_key: str | None = None
    ) -> Steps:
        """Start a run of a webhook trigger, one for each idempotency key.

        Args:
            hook_url: of the trigger; the client calls its own service.
            payload: a JSON value, which the run's nodes map as `$.trigger.result`.
        """
        path = f"/v1/hooks/{segment(hook_url.rpartition('/')[2])}"
        return single(Call("POST", path, body=payload, headers=keyed(idempotency_key)))

    trigger = reading("/v1/triggers/{}", replies.Trigger)
    triggers = listing("/v1/triggers", replies.TriggersQuery, replies.TriggerPage)
    schedule_runs = trigger_runs = listing_of("/v1/triggers/{}/runs", PageQuery, replies.RunPage)

    @operation(replies.TriggerChanged)
    def change_trigger(self, /, trigger_id: str, **changes: Any) -> Steps:
        """Change members of a trigger, such as a schedule; None restores a default.

        Args:
            changes: by the names of the members in Python's spelling, such as `enabled`.
        """
        body = {json_name(name): value for name, value in changes.items()}
        return single(Call("PATCH", f"/v1/triggers/{segment(trigger_id)}", body=body))

    @sending("DELETE", "/v1/triggers/{trigger_id}", replies.TriggerChanged)
    def delete_trigger(self, trigger_id: str) -> None:
        """End a trigger, such as a schedule; its runs go on."""

    change_schedule, delete_schedule = change_trigger, delete_trigger
    iterate_workflows = Iteration(workflows)
