"""Client operations for work (workflows, tasks, triggers) and agents (registry, identity,
revocation).

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
from callboard.location import read_seed
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

# The pause between two polls, seconds. It is made only if the service replied without waiting.
POLL_PAUSE_S = 0.25


class WorkOperations:
    """Operations on workflows, tasks, auctions, schedules and triggers."""

    @operation(replies.Suggestion)
    def suggest(self, description: str) -> Steps:
        """Draft a workflow from a description in words; nothing is stored.

        Reference: features.md (Planning).
        """
        body = {"description": description}
        # The service may call a language model, which can take many seconds.
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
        """Wait until the workflow has ended, and return its record.

        Args:
            timeout_s: the longest wait in seconds; then the current record is returned. None waits
                without a limit.
        """
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
        """Cancel a workflow; the rest of its escrow returns to the payer. Reference: features.md
        (Cancellation)."""

    @sending("POST", "/v1/workflows/{workflow_id}/resume", replies.Resumed)
    def resume(self, workflow_id: str) -> None:
        """Resume a quarantined workflow."""

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
        """Submit the result, or the error, of a dispatch that the agent accepted earlier.

        Args:
            result_id: the dispatch's `resultId`. It is also the credential for this request.
            result: the result object, if `error` is None.
            error: what went wrong. If it is given, the attempt fails.
            code: a short name for the error.
            metrics: for example `tokens_used`.
            agent_did: the agent that submits.
            signature: the agent's signature over the result.
            public_key: the public key of the signature.

        Reference: features.md (Asynchronous results).
        """
        members = {"error": error, "code": code, "metrics": metrics, "agentDid": agent_did}
        members |= {"signature": signature, "publicKey": public_key}
        body: Json = {"workflowId": workflow_id, "nodeId": node_id, "resultId": result_id}
        body |= {name: value for name, value in members.items() if value is not None}
        body["status"] = "success" if error is None else "error"
        if error is None:
            body["result"] = dict(result or {})
        # Without an idempotency key, the repetition of an error that was accepted is refused as
        # ALREADY_SETTLED.
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
        """Publish a task that is described in words.

        Args:
            description: the task; a prefix `[cap.id]` names its capability.
            budget_credits: the most that the task may cost.
            selection: `best` or `auction`.
            auction_window_ms: how long the auction accepts live bids.
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
        """Place a sealed bid for a task whose node is auctioned; see `bid`.

        Args:
            amount_credits: the price that the agent asks for.
            node_id: the node to bid for; needed if the task's workflow has several nodes.
            eta_ms: the time in which the agent promises its result.
            stake_credits: the most that the agent stakes on this node; None: the required stake.
            agent_did: the agent that bids; None: the caller.
        """

    @sending("GET", "/v1/auctions/{workflow_id}/{node_id}", replies.Auction)
    def auction(self, workflow_id: str, node_id: str) -> None:
        """Read the auction of a node; the bids are visible after it has closed."""

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
        """Place a sealed bid for a node. Reference: money.md (Auctions).

        Args:
            amount_credits: the price that the agent asks for.
            eta_ms: the time in which the agent promises its result.
            stake_credits: the most that the agent stakes on this node; None: the required stake.
            agent_did: the agent that bids; None: the caller.
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
            rating: a number from 0 to 1 or from 1 to 5.
            scale: the highest rating of the scale, 1 or 5. The rating 1 needs a scale: it is the
                best rating on the scale to 1, and the worst rating on the scale to 5.
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
        """Create a schedule; the caller pays for its runs.

        Args:
            cron_expression: five fields as in cron.
            workflow_template: a manifest, or `{"capability": …, "input": {…}}`.
            timezone: the IANA time zone of the expression; None: UTC.
            overlap_policy: what happens at a due time while an earlier run has not ended: `skip`,
                `queue` or `allow` the new run.
            daily_budget_credits: the most credits that the runs of one UTC day may hold.
        """

    schedule = reading("/v1/schedules/{}", replies.Trigger)
    schedules = listing("/v1/schedules", replies.TriggersQuery, replies.SchedulePage)

    @sending("POST", "/v1/schedules/{schedule_id}/trigger", replies.RunStarted)
    def start_run(self, schedule_id: str, *, idempotency_key: str | None = None) -> None:
        """Start a run of a schedule now; its due times do not change."""

    @sending("GET", "/v1/schedules/{schedule_id}/next", replies.DueTimes)
    def due_times(self, schedule_id: str, *, n: int | None = None) -> None:
        """Read the next due times of a schedule.

        Args:
            n: the number of due times, 1 to 100; None: 10.
        """

    @operation(replies.TemplateStored)
    def create_trigger(
        self, manifest: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> Steps:
        """Store a template and its trigger; for the trigger type `webhook` the reply has `hookUrl`.

        Args:
            manifest: the workflow manifest of the runs; the type of its `trigger` must not be
                `manual`.
        """
        path, headers = "/v1/workflows/publish", keyed(idempotency_key)
        return single(Call("POST", path, body=dict(manifest), headers=headers))

    @operation(replies.RunStarted)
    def call_hook(
        self, hook_url: str, payload: Any, *, idempotency_key: str | None = None
    ) -> Steps:
        """Start a run of a webhook trigger; each idempotency key starts at most one run.

        Args:
            hook_url: the trigger's `hookUrl`. Only its last segment is used: the client calls the
                service at its own address.
            payload: a JSON value, which the run's nodes can read as `$.trigger.result`.
        """
        path = f"/v1/hooks/{segment(hook_url.rpartition('/')[2])}"
        return single(Call("POST", path, body=payload, headers=keyed(idempotency_key)))

    trigger = reading("/v1/triggers/{}", replies.Trigger)
    triggers = listing("/v1/triggers", replies.TriggersQuery, replies.TriggerPage)
    schedule_runs = trigger_runs = listing_of("/v1/triggers/{}/runs", PageQuery, replies.RunPage)

    @operation(replies.TriggerChanged)
    def change_trigger(self, /, trigger_id: str, **changes: Any) -> Steps:
        """Change members of a trigger, such as a schedule.

        Args:
            changes: the new values by member name in snake case, such as `enabled`; None restores
                the default.
        """
        body = {json_name(name): value for name, value in changes.items()}
        return single(Call("PATCH", f"/v1/triggers/{segment(trigger_id)}", body=body))

    @sending("DELETE", "/v1/triggers/{trigger_id}", replies.TriggerChanged)
    def delete_trigger(self, trigger_id: str) -> None:
        """End a trigger, such as a schedule; its runs go on."""

    change_schedule, delete_schedule = change_trigger, delete_trigger
    iterate_workflows = Iteration(workflows)


class AgentOperations:
    """Operations on registered agents: cards, capability versions, keys, names and revocations."""

    @sending("DELETE", "/v1/agents/{did}", replies.Deregistered)
    def deregister_agent(self, did: str) -> None:
        """Deregister an agent; registering it again restores it."""

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
        """Send a heartbeat of an agent; a changed status is in force when this returns.

        Args:
            status: for example `healthy`, `busy`, `draining`, `stopped`.
            load: the share of the agent's capacity that is in use, 0 to 1.
            queue_depth: the number of dispatches that wait in the agent.
            version: the agent's version.
            token: the `heartbeatToken` from the registration, instead of the client's credential.

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
            include_inactive: also find a deregistered agent that belongs to the caller.
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
            words: words to search for; an agent that matches one of them is found.
            capability_id: an id, a prefix with `*`, or an id with a version range:
                `cap.x.y.v1@>=1.2`.
            min_reputation: the lowest reputation, 0 to 1.
            max_latency_ms: the highest average latency.
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
            input_schema, output_schema: JSON Schema 2020-12, without references to other documents.
            changelog: what has changed since the previous version.
            deprecates_version: the version that this one replaces.
            owner_did: the owner of the versions, the caller by default; only administrators may
                name another owner.
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
        """Deprecate a version of a capability permanently.

        Args:
            successor: an active version to use instead.
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
        """Read which version of a capability to use, and the upgrade path to the latest version.

        Args:
            supported: the versions that the caller supports, or ranges such as `>=1.2 <2`.
            preferred: the version to choose if it is among the supported versions.
        """

    @operation(replies.AgentKeyRotated)
    def rotate_agent_key(self, did: str, new_public_key: str, *, private_key: str) -> Steps:
        """Replace an agent's key; the current key signs the change.

        Args:
            new_public_key: base64 of 32 bytes.
            private_key: the current private key, or the path of its file; see `read_seed`. The
                private key is not sent.
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
        """Register a name for an agent that belongs to the caller.

        Args:
            months: calendar months until the name expires, 1 to 120; None: 12.
        """

    name = reading("/v1/identity/names/{}", replies.Name)
    names_of = listing_of("/v1/agents/{}/names", PageQuery, replies.NamePage)

    @sending(
        "POST", "/v1/identity/names/{name}/renew", replies.NameChanged, months="durationMonths"
    )
    def renew_name(self, name: str, *, months: int | None = None) -> None:
        """Extend the expiry of a name.

        Args:
            months: calendar months to add; None: 12.
        """

    @sending("POST", "/v1/identity/names/{name}/transfer", replies.NameTransferred)
    def transfer_name(self, name: str, agent_did: str) -> None:
        """Move a name to another agent, offer it to another owner's agent, or accept an offer."""

    release_name = removing("/v1/identity/names/{}", replies.NameReleased, "name")

    @operation(replies.InheritanceSet)
    def set_inheritance(
        self, did: str, heir_did: str, days: int, *, requires_inactivity: bool = False
    ) -> Steps:
        """Name the heir of an agent; the heir becomes the owner when the agent's heartbeats stop.

        Args:
            days: days without a heartbeat after which the agent is inherited.
            requires_inactivity: the owner's own requests also restart the count of days.
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
        """Name the guardians and the custodian who may replace a lost key of an agent.

        Args:
            threshold: the number of guardians who must sign.
            custodian_did: a DID that may replace the key alone.
            delay_hours: the hours of the time lock, in which the current key can cancel a
                replacement.
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
        """Request that an agent's key is replaced, or add signatures to a request.

        Args:
            recovery_type: `social_recovery`, `custodian_recovery` or `time_lock_recovery`.
            new_public_key: base64 of 32 bytes.
            signatures: base64 signatures over the request's `message`, by the DID of the signer.
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
            signature: the signature over `cancel:{id}` by the agent's current key, base64. None if
                the caller is a party of the request.
        """

    @sending("POST", "/v1/trust/revoke", replies.Revoked)
    def revoke_agent(
        self, did: str, reason: str, *, evidence: Mapping[str, Any], expires_at: str | None = None
    ) -> None:
        """Revoke an agent, which then gets no work and no payments.

        The agent itself, its owner and administrators may revoke it.

        Args:
            evidence: JSON that supports the reason. The service stores it, and its hash is in the
                audit chain.
            expires_at: the end of the revocation, an ISO 8601 time; None: permanent.
        """

    unrevoke_agent = removing("/v1/revoked/{}", replies.Unrevoked, "did", revoked=False)
    revocation = reading("/v1/revoked/{}", replies.Revocation)
    revocations = listing("/v1/revoked", PageQuery, replies.RevocationPage)
    iterate_agents = Iteration(agents)
    iterate_versions = Iteration(versions_of)
    iterate_revocations = Iteration(revocations)
