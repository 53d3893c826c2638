"""Keys of agents: rotate a key, and list the key history.

A rotation needs a proof: a signature by the current key. Any caller may submit the proof. A proof
can be used only once, because the ledger never accepts a former key of a DID again. Reference:
features.md (Key rotation). Decision agent-identity.
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode, ServiceError
from core.records.api.identity import AgentKey, AgentKeyRotated, AgentKeyRotation, KeyHistory
from core.records.api.record import PageQuery
from core.trust.did_key import key_of_did
from core.trust.identity.agent_keys import canonical_key, key_name, rotation_message
from core.trust.signatures import is_signed_by
from ledger.features.agent_keys import RotateAgentKey
from ledger.features.identity_reads import key_rows
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, found, invalid
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import shown, shown_result
from serve_app.operations.visibility import known_did

OPERATIONS = Operations("trust")


@OPERATIONS.add(
    "POST",
    "/v1/trust/rotate-key",
    body=AgentKeyRotation,
    reply=AgentKeyRotated,
    errors=(ErrorCode.NOT_FOUND, ErrorCode.INVALID_SIGNATURE),
)
async def rotate(call: Call) -> Json:
    """Rotate the key of an agent with a proof by the current key.

    The reply is sent when every owner process has read the new key.
    """
    body = call.given(AgentKeyRotation)
    did, services = body.agent_did, call.services
    new_key = new_key_of(did, body.new_public_key)
    row = found(await services.reader.agent(did), f"the agent {did}")
    proven_key, message = row["public_key"], rotation_message(did, body.new_public_key)
    if proven_key is None or not is_signed_by(proven_key, message, body.rotation_proof):
        raise ServiceError(
            ErrorCode.INVALID_SIGNATURE,
            f"rotationProof is not a signature by the current key of {did} over"
            " rotate:{agentDid}:{newPublicKey}",
        )
    command = RotateAgentKey(
        did=did,
        new_key=new_key,
        proven_key=proven_key,
        overlap_ms=services.settings.key_overlap_s * 1_000,
    )
    outcome = await call.commit(command, until_known=True)
    key_id = key_name(did, outcome.result["keyNumber"])
    others = {"agent_did": did, "key_id": key_id, "public_key": new_key}
    return shown_result(AgentKeyRotated, outcome, id=did, **others)


def new_key_of(did: str, given: str) -> str:
    """Return the new public key of an agent in its canonical form: base64 of 32 bytes.

    Args:
        did: the agent.
        given: the key in the body.

    Raises:
        ServiceError: INVALID_REQUEST: the key is invalid. CONFLICT: the DID is a `did:key`, whose
            key cannot change.
    """
    if key_of_did(did) is not None:
        raise ServiceError(
            ErrorCode.CONFLICT, f"{did} is a did:key: it is its own key, which cannot be rotated"
        )
    try:
        return canonical_key(given)
    except ValueError as error:
        raise invalid("newPublicKey", str(error), "base64 of an Ed25519 public key") from None


@OPERATIONS.add("GET", "/v1/trust/key-history/{did}", query=PageQuery, reply=KeyHistory)
async def key_history(call: Call) -> Json:
    """List the key history of an agent."""
    did, page = call.path_values["did"], page_of(call, call.given(PageQuery))
    rows = await key_rows(
        call.services.reader, await known_did(call, did), before=number_after(page), **page.rows
    )

    def form(row: RowDict) -> dict[str, Any]:
        return shown(AgentKey, row, key_id=key_name(did, row["number"]))

    return listed("keyHistory", rows, page, lambda row: row["number"], form=form)
