"""The keys of agents: replaced by the word of the current one, listed with their times.

The proof is the credential, whichever caller brings it, and worth something once, because no key of
a DID is ever accepted again. Spec: Key rotation, /v1/trust/rotate-key. Decision agent-identity.
"""

from __future__ import annotations

from core.errors import ErrorCode, ServiceError
from core.records.api.identity import AgentKeyRotated, AgentKeyRotation, KeyHistory
from core.records.api.path_values import AnyDidPath
from core.records.api.record import PageQuery
from core.trust.did_key import key_of_did
from core.trust.identity.agent_keys import canonical_key, key_name, rotation_message
from core.trust.signatures import is_signed_by
from ledger.identity.agent_key_commands import RotateAgentKey
from ledger.identity.identity_reads import key_rows
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Repeats, Reply, invalid, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import iso_time


async def rotate(call: Call) -> Reply:
    """Replace an agent's key; answered when every owner knows it."""
    body = call.given(AgentKeyRotation)
    did, services = body.agent_did, call.services
    new_key = new_key_of(did, body.new_public_key)
    row = await services.reader.agent(did)
    if row is None:
        raise not_found(f"the agent {did}")
    proven_key, message = row["public_key"], rotation_message(did, body.new_public_key)
    if proven_key is None or not is_signed_by(proven_key, message, body.rotation_proof):
        raise ServiceError(
            ErrorCode.INVALID_SIGNATURE,
            f"rotationProof is not a signature by the current key of {did} over"
            " rotate:{agentDid}:{newPublicKey}",
        )
    command = RotateAgentKey(
        key=call.command_key(f"rotate:{services.new_id()}"),
        actor_did=call.caller.did,
        did=did,
        new_key=new_key,
        proven_key=proven_key,
        overlap_ms=services.settings.key_overlap_s * 1_000,
    )
    outcome = await call.commit(command)
    await services.gateway.owners.refresh()
    return Reply(
        {
            "success": True,
            "id": did,
            "agentDid": did,
            "keyId": key_name(did, outcome.result["keyNumber"]),
            "publicKey": new_key,
            "validFrom": iso_time(outcome.result["validFromMs"]),
            "formerValidUntil": iso_time(outcome.result["formerValidUntilMs"]),
        }
    )


def new_key_of(did: str, given: str) -> str:
    """Return a key that an agent shall get, base64 of its 32 bytes.

    Raises:
        ServiceError: INVALID_REQUEST; CONFLICT for a DID whose key is its name.
    """
    if key_of_did(did) is not None:
        raise ServiceError(
            ErrorCode.CONFLICT, f"{did} is a did:key: it is its own key, which cannot be rotated"
        )
    try:
        return canonical_key(given)
    except ValueError as error:
        raise invalid("newPublicKey", str(error), "base64 of an Ed25519 public key") from None


async def key_history(call: Call) -> Reply:
    """List the keys of an agent, the current one first; of an unknown DID there are none."""
    did, page = call.given(AnyDidPath).did, page_of(call, call.given(PageQuery))
    rows = await key_rows(
        call.services.reader,
        did,
        limit=page.limit + 1,
        offset=page.offset,
        before=number_after(page),
    )

    def form(row: RowDict) -> dict[str, object]:
        return {
            "keyId": key_name(did, row["number"]),
            "publicKey": row["public_key"],
            "validFrom": iso_time(row["valid_from_ms"]),
            "validUntil": iso_time(row["valid_until_ms"]),
        }

    return Reply(listed("keyHistory", rows, page, lambda row: row["number"], form=form))


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/trust/rotate-key",
        handler=rotate,
        summary="Rotate the key of an agent with a proof by the current key",
        scope="trust:write",
        rate=RateClass.WRITE,
        tag="trust",
        body=AgentKeyRotation,
        reply=AgentKeyRotated,
        errors=(
            ErrorCode.NOT_FOUND,
            ErrorCode.INVALID_SIGNATURE,
            ErrorCode.FORBIDDEN,
            ErrorCode.CONFLICT,
        ),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="GET",
        path="/v1/trust/key-history/{did}",
        path_values=AnyDidPath,
        handler=key_history,
        summary="List the key history of an agent",
        scope="trust:read",
        rate=RateClass.READ,
        tag="trust",
        query=PageQuery,
        reply=KeyHistory,
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
)
