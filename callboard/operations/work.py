"""Operations about work and agents: workflows, tasks, triggers; registry, identity, revocation.

Reference: features.md (Workflows, Triggers, Schedules, Registration, Capability versions, Key
rotation, Names, Inheritance, Recovery, Revocation); money.md (Auctions).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nacl.signing import SigningKey

from callboard import replies
from callboard.calls import (
    PREFER_WAIT_S_MAX,
    Call,
    Steps,
    keyed,
    post,
    segment,
    single,
)
from callboard.locating import read_seed
from callboard.operations.declaring import (
    Iteration,
    listing,
    listing_of,
    operation,
    reading,
    removing,
    sending,
)
from callboard.replies import FINISHED, Credits
from core.records.api.record import PageQuery
from core.records.api.shape import Json, json_name
from core.trust.identity.agent_keys import rotation_message

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


class AgentOperations:
    """The agents that are registered, and who may act for them."""

    @sending("DELETE", "/v1/agents/{did}", replies.Deregistered)
    def deregister_agent(self, did: str) -> None:
        """Take an agent out of service; registering it again brings it back."""

    @operation(replies.HeartbeatTaken)
    def heartbeat(
        self,
        did: str,
        *,
        status: str | None = None,
        load: float | None = None,
        queue_depth: int | None = None,
        version: str | None = None,
        token: str | None = None,
    ) -> Steps:
        """Say how an agent is; a changed status is in force when this returns.

        Args:
            status: for example `healthy`, `busy`, `draining`, `stopped`.
            load: the share of its capacity that is taken, 0 to 1.
            queue_depth: how many dispatches wait in it.
            version: the agent's.
            token: the `heartbeatToken` of its registration, instead of the client's key.

        Reference: features.md (Heartbeats and health).
        """
        members = {"status": status, "load": load, "queueDepth": queue_depth, "version": version}
        body = {name: value for name, value in members.items() if value is not None}
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return single(
            Call("POST", f"/v1/agents/{segment(did)}/heartbeat", body=body, headers=headers)
        )

    agents = listing("/v1/agents", replies.AgentsQuery, replies.AgentPage)

    @sending("GET", "/v1/agents/{did}", replies.Agent)
    def agent(self, did: str, *, include_inactive: bool = False) -> None:
        """Read a registered agent.

        Args:
            include_inactive: also one of the caller's own that was deregistered.
        """

    card_versions = listing_of("/v1/agents/{}/versions", PageQuery, replies.Lineage)

    @sending("GET", "/v1/discover", replies.Discovered, words="q")
    def discover(
        self,
        words: str | None = None,
        *,
        capability_id: str | None = None,
        owner_did: str | None = None,
        limit: int | None = None,
        min_reputation: float | None = None,
        max_price_cents: int | None = None,
        max_latency_ms: int | None = None,
        region: str | None = None,
        subnet: str | None = None,
        availability: str | None = None,
    ) -> None:
        """Find agents, the best first.

        Args:
            words: any of them is enough.
            capability_id: an id, its beginning and `*`, or an id and versions: `cap.x.y.v1@>=1.2`.
            min_reputation: 0 to 1.
            max_latency_ms: of an agent's average.
        """

    @sending("POST", "/v1/capabilities/versions", replies.VersionPublished)
    def publish_version(
        self,
        capability_id: str,
        version: str,
        *,
        input_schema: Mapping[str, Any],
        output_schema: Mapping[str, Any],
        changelog: str = "",
        deprecates_version: str | None = None,
        owner_did: str | None = None,
    ) -> None:
        """Publish a version of a capability. Reference: features.md (Capability versions).

        Args:
            version: a semantic version, for example `1.4.0`.
            input_schema: JSON Schema 2020-12, without references to others; so is `output_schema`.
            changelog: what has changed.
            deprecates_version: which version this one succeeds.
            owner_did: whose versions these are; only administrators name another than the caller.
        """

    versions_of = listing_of(
        "/v1/capabilities/{}/versions", PageQuery, replies.CapabilityVersionPage
    )

    @sending(
        "GET", "/v1/capabilities/{capability_id}/versions/{version}", replies.CapabilityVersionWhole
    )
    def version(self, capability_id: str, version: str) -> None:
        """Read a version of a capability with its schemas."""

    @sending(
        "POST",
        "/v1/capabilities/{capability_id}/versions/{version}/deprecate",
        replies.VersionDeprecated,
    )
    def deprecate_version(
        self, capability_id: str, version: str, *, successor: str | None = None
    ) -> None:
        """Deprecate a version of a capability, for good.

        Args:
            successor: an active version to be used instead.
        """

    @sending(
        "POST",
        "/v1/capabilities/negotiate",
        replies.Negotiated,
        supported="supportedVersions",
        preferred="preferredVersion",
    )
    def negotiate_version(
        self, capability_id: str, supported: Sequence[str], *, preferred: str | None = None
    ) -> None:
        """Ask which version of a capability to use, and for the way from it to the latest.

        Args:
            supported: versions, or ranges such as `>=1.2 <2`.
            preferred: chosen if it is among them.
        """

    @operation(replies.AgentKeyRotated)
    def rotate_agent_key(self, did: str, new_public_key: str, *, private_key: str) -> Steps:
        """Replace an agent's key by another; the current one signs for it.

        Args:
            new_public_key: base64 of 32 bytes.
            private_key: the current one, base64 or the path of its file; it is not sent.
        """
        signed = SigningKey(read_seed(private_key)).sign(rotation_message(did, new_public_key))
        return post(
            "/v1/trust/rotate-key",
            agentDid=did,
            newPublicKey=new_public_key,
            rotationProof=base64.b64encode(signed.signature).decode(),
        )

    key_history = listing_of("/v1/trust/key-history/{}", PageQuery, replies.KeyHistory)

    @sending("POST", "/v1/identity/names", replies.NameChanged, months="durationMonths")
    def register_name(self, name: str, agent_did: str, *, months: int | None = None) -> None:
        """Register a name for an agent of one's own.

        Args:
            months: calendar months, 1 to 120; None: 12.
        """

    name = reading("/v1/identity/names/{}", replies.Name)
    names_of = listing_of("/v1/agents/{}/names", PageQuery, replies.NamePage)

    @sending(
        "POST", "/v1/identity/names/{name}/renew", replies.NameChanged, months="durationMonths"
    )
    def renew_name(self, name: str, *, months: int | None = None) -> None:
        """Let a name expire so many calendar months later; None: 12."""

    @sending("POST", "/v1/identity/names/{name}/transfer", replies.NameTransferred)
    def transfer_name(self, name: str, agent_did: str) -> None:
        """Give a name to another agent, offer it to one of another owner, or take an offer."""

    release_name = removing("/v1/identity/names/{}", replies.NameReleased, "name")

    @operation(replies.InheritanceSet)
    def set_inheritance(
        self, did: str, heir_did: str, days: int, *, requires_inactivity: bool = False
    ) -> Steps:
        """Say who shall have an agent that sends no heartbeat for so many days.

        Args:
            requires_inactivity: the owner's own acts start the time again, too.
        """
        return post(
            "/v1/identity/inheritance",
            agentDid=did,
            inheritsToDid=heir_did,
            deadManSwitchDays=days,
            conditions={"requiresInactivity": requires_inactivity},
        )

    inheritance = reading("/v1/identity/inheritance/{}", replies.Inheritance)
    cancel_inheritance = removing(
        "/v1/identity/inheritance/{}", replies.InheritanceCancelled, "agentDid"
    )

    @sending("PUT", "/v1/identity/guardians/{did}", replies.GuardiansSet)
    def set_guardians(
        self,
        did: str,
        guardians: Sequence[str] = (),
        threshold: int = 0,
        *,
        custodian_did: str | None = None,
        delay_hours: int = 72,
    ) -> None:
        """Say who may replace an agent's key when it is lost.

        Args:
            threshold: how many of the guardians must sign.
            custodian_did: may replace it alone.
            delay_hours: of a time lock, in which the current key can cancel.
        """

    guardians = reading("/v1/identity/guardians/{}", replies.GuardianSet)

    @operation(replies.RecoveryMade)
    def request_recovery(
        self,
        did: str,
        recovery_type: str,
        new_public_key: str,
        *,
        recovery_address: str | None = None,
        signatures: Mapping[str, str] | None = None,
    ) -> Steps:
        """Ask for an agent's key to be replaced, or add signatures to such a request.

        Args:
            recovery_type: `social_recovery`, `custodian_recovery` or `time_lock_recovery`.
            new_public_key: base64 of 32 bytes.
            signatures: by DID, base64 over the request's `message`.
        """
        listed = [{"did": one, "signature": text} for one, text in (signatures or {}).items()]
        return post(
            "/v1/identity/recover",
            agentDid=did,
            recoveryType=recovery_type,
            newPublicKey=new_public_key,
            recoveryAddress=recovery_address,
            proof={"signatures": listed} if listed else None,
        )

    recovery = reading("/v1/identity/recover/{}", replies.Recovery)

    @sending("POST", "/v1/identity/recover/{recovery_id}/cancel", replies.RecoveryMade)
    def cancel_recovery(self, recovery_id: str, *, signature: str | None = None) -> None:
        """Cancel a request to replace an agent's key.

        Args:
            signature: base64 by the agent's current key over `cancel:{id}`; None for a party of it.
        """

    @sending("POST", "/v1/trust/revoke", replies.Revoked)
    def revoke_agent(
        self, did: str, reason: str, *, evidence: Mapping[str, Any], expires_at: str | None = None
    ) -> None:
        """Revoke an agent: it gets no work and no pay; for itself, its owner and administrators.

        Args:
            evidence: what shows it; kept, its hash goes into the audit chain.
            expires_at: an ISO 8601 time; None: for good.
        """

    unrevoke_agent = removing("/v1/revoked/{}", replies.Unrevoked, "did", revoked=False)
    revocation = reading("/v1/revoked/{}", replies.Revocation)
    revocations = listing("/v1/revoked", PageQuery, replies.RevocationPage)
    iterate_agents = Iteration(agents)
    iterate_versions = Iteration(versions_of)
    iterate_revocations = Iteration(revocations)
