"""Operations about agents: registry, capability versions, identity and revocation.

Reference: features.md (Registration, Capability versions, Key rotation, Names, Inheritance,
Recovery, Revocation).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from nacl.signing import SigningKey

from callboard import replies
from callboard.calls import (
    Call,
    Steps,
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
from core.records.api.record import PageQuery
from core.trust.identity.agent_keys import rotation_message


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
