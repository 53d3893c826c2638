"""Recovery of agents' keys: set guardians; make, sign, read and cancel recovery requests.

This module verifies every signature. The ledger decides whether the signatures suffice. Only the
parties of a request may see it. Reference: features.md (Recovery). Decision agent-identity.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from core.errors import ErrorCode, ServiceError
from core.records.api.identity import (
    GUARDIANS_MAX,
    GuardianSet,
    GuardianSignature,
    GuardiansSet,
    GuardiansSetting,
    Recovery,
    RecoveryCancelling,
    RecoveryMade,
    RecoveryRequest,
    ReplacedGuardians,
)
from core.trust.did_key import key_of_did
from core.trust.identity.succession import cancel_message, recovery_id, recovery_messages
from core.trust.signatures import is_signed_by
from ledger.features.identity_reads import current_keys, guardian_row, guardian_sets, recovery_row
from ledger.features.recovery import CancelRecovery, RequestRecovery, SetGuardians
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, found, invalid, not_found
from serve_app.operations.identity.key_rotation import new_key_of
from serve_app.operations.views import iso_time, shown

_RECOVERY = "/v1/identity/recover/{recovery_id}"
OPERATIONS = Operations("identity")


@OPERATIONS.add("PUT", "/v1/identity/guardians/{did}", body=GuardiansSetting, reply=GuardiansSet)
async def set_guardians(call: Call) -> Json:
    """Set the guardians of an agent's key."""
    did, body = call.path_values["did"], call.given(GuardiansSetting)
    await _check_guardians(call, did, body)
    command = SetGuardians(
        did=did,
        guardians=tuple(body.guardians),
        threshold=body.threshold,
        custodian_did=body.custodian_did,
        delay_hours=body.delay_hours,
    )
    await call.commit(command)
    # The row is missing if the agent has got another owner meanwhile.
    row = found(await _guardians(call, did), f"the guardians of {did[:255]}")
    return {"success": True, "id": did, **_guardians_record(row)}


async def _check_guardians(call: Call, did: str, body: GuardiansSetting) -> None:
    """Refuse guardians that could never recover the key.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    count = len(body.guardians)
    if count > GUARDIANS_MAX or len(set(body.guardians)) < count:
        raise invalid("guardians", f"{count} DIDs", f"at most {GUARDIANS_MAX}, each once")
    if body.threshold > count or (count > 0) != (body.threshold > 0):
        raise invalid("threshold", str(body.threshold), f"1 to {count}, 0 without guardians")
    named = [*body.guardians, *([] if body.custodian_did is None else [body.custodian_did])]
    keys = await _keys_of(call, named)
    for one in named:
        is_hidden = key_of_did(one) is None and await call.is_hidden(one)
        if one == did or one not in keys or is_hidden:
            where = "guardians" if one in body.guardians else "custodianDid"
            raise invalid(where, one, "a did:key, or another registered agent with a key")


@OPERATIONS.add("GET", "/v1/identity/guardians/{did}", reply=GuardianSet)
async def get_guardians(call: Call) -> Json:
    """Read the guardians of an agent's key."""
    did = call.path_values["did"]
    agent, row = await call.services.reader.agent(did), await _guardians(call, did)
    owners = () if agent is None else (agent["owner_did"],)
    signers = () if row is None else _signers(row)
    call.require_party((did, *owners, *signers), f"the guardians of {did[:255]}")
    if row is None:
        raise not_found(f"the guardians of {did[:255]}")
    return _guardians_record(row)


def _guardians_record(row: RowDict) -> dict[str, Any]:
    """Return the record of an agent's guardians, with replaced sets that are still valid."""
    replaced = [shown(ReplacedGuardians, one) for one in row["counting"]]
    return shown(GuardianSet, row, replaced=replaced)


@OPERATIONS.add(
    "POST",
    "/v1/identity/recover",
    body=RecoveryRequest,
    reply=RecoveryMade,
    errors=(ErrorCode.NOT_FOUND, ErrorCode.INVALID_SIGNATURE),
)
async def request(call: Call) -> Json:
    """Request the recovery of an agent's key, or add signatures to the request."""
    body, services = call.given(RecoveryRequest), call.services
    did, new_key = body.agent_did, new_key_of(body.agent_did, body.new_public_key)
    if await services.reader.agent(did) is None:
        raise not_found(f"the agent {did}")
    request_id = recovery_id(did, new_key)
    signatures = [] if body.proof is None else body.proof.signatures
    command = RequestRecovery(
        recovery_id=request_id,
        did=did,
        recovery_type=body.recovery_type,
        new_key=new_key,
        recovery_address=body.recovery_address,
        signers=await _verified(call, did, body.new_public_key, request_id, signatures),
    )
    outcome = await call.commit(command)
    if outcome.result["status"] == "completed":
        await services.gateway.owners.refresh()
    return await _made(call, request_id)


async def _verified(
    call: Call, did: str, sent_key: str, request_id: str, signatures: list[GuardianSignature]
) -> tuple[tuple[str, str], ...]:
    """Verify all signatures, and return the DIDs of the signers with their keys.

    Args:
        call: the request.
        did: the agent.
        sent_key: the agent's new key as the body has it.
        request_id: the id of the recovery request.
        signatures: the signatures in the body.

    Raises:
        ServiceError: INVALID_REQUEST: too many signatures, or two of the same DID.
            INVALID_SIGNATURE: a signature is not by the current key of a guardian or the custodian.
    """
    dids = [one.did for one in signatures]
    if len(dids) > GUARDIANS_MAX + 1 or len(set(dids)) < len(dids):
        got = f"{len(dids)} signatures"
        raise invalid("proof.signatures", got, f"at most {GUARDIANS_MAX + 1}, one for each DID")
    if not dids:
        return ()
    row = await _guardians(call, did)
    signers = () if row is None else _signers(row)
    keys = await _keys_of(call, dids)
    messages = recovery_messages(request_id, did, sent_key)
    for one in signatures:
        key = keys.get(one.did) if one.did in signers else None
        if key is None or not any(
            is_signed_by(key, message, one.signature) for message in messages
        ):
            raise ServiceError(
                ErrorCode.INVALID_SIGNATURE,
                f"the signature of {one.did} is not valid: expected one by a guardian or the"
                f" custodian over {messages[0].decode()}",
            )
    return tuple((one.did, keys[one.did]) for one in signatures)


@OPERATIONS.add("GET", _RECOVERY, reply=Recovery)
async def get(call: Call) -> Json:
    """Read a recovery request."""
    return _record(await _visible(call))


@OPERATIONS.add(
    "POST",
    f"{_RECOVERY}/cancel",
    body=RecoveryCancelling,
    is_body_optional=True,
    reply=RecoveryMade,
    errors=(ErrorCode.INVALID_SIGNATURE, ErrorCode.NOT_CANCELLABLE),
)
async def cancel(call: Call) -> Json:
    """Cancel a recovery request."""
    row, services = await _visible(call, is_signed=True), call.services
    request_id, signature = str(row["id"]), call.given(RecoveryCancelling).signature
    proven_key = None
    if signature is not None:
        agent = await services.reader.agent(row["agent_did"])
        proven_key = None if agent is None else agent["public_key"]
        if proven_key is None or not is_signed_by(
            proven_key, cancel_message(request_id), signature
        ):
            raise ServiceError(
                ErrorCode.INVALID_SIGNATURE,
                f"the signature is not by the agent's current key over cancel:{request_id}",
            )
    command = CancelRecovery(
        recovery_id=request_id,
        did=row["agent_did"],
        proven_key=proven_key,
    )
    await call.commit(command)
    return await _made(call, request_id)


async def _visible(call: Call, *, is_signed: bool = False) -> RowDict:
    """Return the recovery request in the path.

    Args:
        call: the request.
        is_signed: a call with a signature in its body may see the request too. The caller of this
            function must then verify the signature.

    Raises:
        ServiceError: NOT_FOUND if the request does not exist or is hidden from the caller.
    """
    request_id = call.path_values["recovery_id"]
    row = found(await recovery_row(call.services.reader, request_id), f"the recovery {request_id}")
    if is_signed and call.given(RecoveryCancelling).signature is not None:
        return row
    did = row["agent_did"]
    agent, named = await call.services.reader.agent(did), await _guardians(call, did)
    owners = () if agent is None else (agent["owner_did"],)
    signers = () if named is None else _signers(named)
    parties = (did, row["requested_by_did"], *owners, *signers)
    call.require_party(parties, f"the recovery {request_id}")
    return row


async def _made(call: Call, request_id: str) -> Json:
    row = await recovery_row(call.services.reader, request_id)
    assert row is not None, request_id
    return {"success": True, **_record(row)}


async def _guardians(call: Call, did: str) -> RowDict | None:
    return await guardian_row(call.services.reader, did)


def _signers(row: RowDict) -> frozenset[str]:
    return guardian_sets(row).signers


async def _keys_of(call: Call, dids: Collection[str]) -> dict[str, str]:
    """Return the current keys of DIDs.

    The key of a `did:key` is the key in the DID. The key of any other DID is its registered key. A
    DID without a key is missing in the result.
    """
    keys = await current_keys(call.services.reader, dids) if dids else {}
    return {**keys, **{did: key for did in dids if (key := key_of_did(did)) is not None}}


def _record(row: RowDict) -> dict[str, Any]:
    request_id, did, new_key = str(row["id"]), row["agent_did"], row["new_key"]
    completes_at = None
    if row["status"] == "waiting":
        # This is an estimate: the delay is extended by any time in which the service is not ready.
        completes_at = iso_time(row["waiting_ms"] + row["delay_ms"])
    return shown(
        Recovery,
        row,
        recovery_id=request_id,
        new_public_key=new_key,
        message=recovery_messages(request_id, did, new_key)[0].decode(),
        completes_at=completes_at,
    )
