"""Checks an agent registration and converts it to the command that stores it.

`core/records/agent_forms.py` parses the body. Reference: features.md (Agent cards, Registration).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from core.canonical import canonical, hash_text
from core.errors import ErrorCode, ProblemList, ServiceError
from core.json_text import write_json
from core.market.pricing import parse_price
from core.market.standing_bid import parse_eta, parse_offer
from core.records.agent import AgentCard, said_in_card, without_standing_bids
from core.records.agent_forms import BESIDE_BYTES_MAX, Registration
from core.records.statuses import OwnershipProof
from core.schemas.schema_cost import SchemaDefect
from core.schemas.value_schema import schema_defect
from core.trust.access import DID_KEY_ID, Principal, denial
from core.trust.deployment_keys import NONCE_BYTES, KeyPurpose, seal
from core.trust.did_key import key_of_did
from core.trust.identity.card_signature import check_age, check_audience, check_secret, signed_bytes
from core.trust.identity.did_web import is_did_web
from core.trust.signatures import is_signed_by, key_bytes
from core.wording import got_of, kind_of
from ledger.features.agents import RegisterAgent
from ledger.features.capability_versions import lines_of_claim
from ledger.features.subnets import has_joined
from ledger.reads.reader import RowDict
from serve_app.http.calls import invalid
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread
from serve_app.operations.agents.endpoints import endpoint_refusals
from serve_app.operations.views import current_card
from serve_app.services import Services

CARD_BYTES_MAX: Final = 64 * 1024
# The most active agents of one owner.
AGENTS_PER_OWNER_MAX: Final = 10_000

# The only spelling of a subnet's id: a UUID in lower case.
_SUBNET_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The result of a schema check is cached only for schemas up to this size.
SMALL_SCHEMA_BYTES: Final = 4 * 1024


async def registration(
    services: Services, principal: Principal, body: Registration, account: str
) -> RegisterAgent:
    """Check a registration, including the endpoint's address, and return its command.

    Args:
        services, principal, body, account: as for `registration_before_endpoint`.

    Raises:
        ServiceError: as for `registration_before_endpoint`; POLICY_DENIED or OVERLOADED.
    """
    command = await registration_before_endpoint(services, principal, body, account)
    (refused,) = await endpoint_refusals(services, principal, [command.endpoint])
    if refused is not None:
        raise refused
    return command


async def registration_before_endpoint(
    services: Services, principal: Principal, body: Registration, account: str
) -> RegisterAgent:
    """Check a registration except the endpoint's address, and return its command.

    The checks: (1) the prices, the schemas and the size of the card; (2) whether the caller may
    register for the owner; (3) the key, the signature, and what the signature permits.

    Args:
        services: the replica's services.
        principal: the caller.
        body: the parsed body.
        account: the DID or the address under which a fetch of a DID document is counted.

    Raises:
        ServiceError: INVALID_REQUEST with all problems, INVALID_SIGNATURE, FORBIDDEN, CONFLICT,
            RATE_LIMITED or OVERLOADED.
    """
    card = body.acard.parsed
    _check_prices(body.acard.raw["capabilities"])
    await _check_schemas(principal.did, card)
    owner_did = body.owner_did or principal.did
    code = denial(principal, None, (owner_did,))
    if code is not None:
        raise ServiceError(code, f"{principal.did} may not register agents for {owner_did}")
    public_key = _public_key(card)
    card_json = _canonical_json(card)
    size = len(card_json.encode())
    if size > CARD_BYTES_MAX:
        raise _too_large(size)
    if body.card_proof is not None and body.acard_signature is None:
        raise invalid("acardSignature", "nothing", "a signature over acard and cardProof")
    proof = _proof_by_credential(principal, body)
    signed = _Signed()
    if body.acard_signature is not None:
        stored = await services.reader.agent(card.did)
        keys = await _signing_keys(services, account, stored, body, public_key)
        key = _signer(body, keys)
        owners = () if stored is None else (stored["owner_did"],)
        if body.card_proof is not None:
            signed = _by_proof(services, stored, body, owner_did)
            public_key = _pinned_key(card, key, public_key)
        elif denial(principal, None, owners) is not None:
            signed = _by_signature_alone(stored, body)
    proof = proof or signed.proof
    offered = tuple(one.id for one in card.capabilities)
    lines_taken: tuple[str, ...] | None = None
    if proof is not None:  # With a proven DID its lines of versions pass to the owner.
        lines_taken = await lines_of_claim(services.reader, card.did, owner_did, offered)
    return RegisterAgent(
        owner_did=owner_did,
        is_signed=signed.is_by_its_key,
        proof=proof,
        card_counter=None if body.card_proof is None else body.card_proof.members.counter,
        did=card.did,
        card_json=card_json,
        card_hash=_sealed_hash(card),
        card_version=card.version,
        metadata=_metadata(card),
        endpoint=card.endpoint,
        capability_ids=offered,
        public_key=public_key,
        secret_encrypted=_sealed(services, body.signing_secret),
        revision_expected=signed.revision,
        is_unchanged=signed.is_unchanged,
        owner_agents_max=AGENTS_PER_OWNER_MAX,
        lines_taken=lines_taken,
        subnet_id=None if signed.is_unchanged else await _subnet_of(services, card, owner_did),
    )


async def _subnet_of(services: Services, card: AgentCard, owner_did: str) -> str | None:
    """Return the id of the subnet that a card names; None if the card names no subnet.

    Raises:
        ServiceError: INVALID_REQUEST: the subnet does not exist, or the owner has not joined it.
    """
    named = said_in_card(card.to_json(), "subnet")
    if named is None:
        return None
    expected = f"the id of a subnet that {owner_did} has joined"
    is_id = isinstance(named, str) and _SUBNET_ID.fullmatch(named) is not None
    if not (is_id and await has_joined(services.reader, named, owner_did)):
        raise invalid("acard.subnet", got_of(named), expected)
    return str(named)


def _canonical_json(card: AgentCard) -> str:
    """Return the JSON text of a card to store: canonical, so that readers can recompute its hash.

    Raises:
        ServiceError: INVALID_REQUEST: the card has no canonical form.
    """
    try:
        return canonical(card.to_json()).decode()
    except ValueError as error:
        raise invalid("acard", str(error)[:200], "canonical JSON") from None


def _sealed_hash(card: AgentCard) -> str | None:
    """Return the hash of a card without its standing bids; None if the card has no bids."""
    whole = card.to_json()
    shown = without_standing_bids(whole)
    return None if shown is whole else hash_text(shown)


def _metadata(card: AgentCard) -> tuple[str | None, str | None, str | None]:
    said = card.metadata
    return (None, None, None) if said is None else (said.name, said.author, said.model)


def changed(did: str, card: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of the registration that applies a change (RFC 7396 JSON merge patch).

    Args:
        did: the agent.
        card: the stored card.
        body: `{acard: {…}}`, or the members of the card; null removes a member. The body may also
            have `signingSecret`.

    Raises:
        ServiceError: INVALID_REQUEST: `acard` is not an object, or names another agent.
    """
    beside = {"signingSecret": body["signingSecret"]} if "signingSecret" in body else {}
    patch = body.get("acard", {name: body[name] for name in body if name not in beside})
    if not isinstance(patch, dict):
        raise invalid("acard", kind_of(patch), "an object with the members to change")
    if patch.get("did", did) != did:
        raise invalid("did", str(patch["did"]), f"{did}, or no did")
    merged = _merged(card, patch)
    if not card.get("endpoint") and "endpoint" not in patch:
        # The card was registered without an endpoint, which is stored as "". A body with "" would
        # be refused.
        del merged["endpoint"]
    return {"acard": merged, **beside}


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    kept = old if isinstance(old, dict) else {}
    merged = {name: value for name, value in kept.items() if name not in patch}
    for name, value in patch.items():
        if value is not None:
            merged[name] = _merged(kept.get(name), value)
    return merged


def _check_prices(capabilities: list[dict[str, Any]]) -> None:
    problems = ProblemList()
    for position, capability in enumerate(capabilities):
        where = f"acard.capabilities[{position}]"
        problems.extend(parse_price(capability, where)[1])
        problems.extend(parse_eta(capability, where)[1])
        if capability.get("standingBid") is not None:
            problems.extend(parse_offer(capability["standingBid"], f"{where}.standingBid")[1])
    if problems:
        detail = "a price, an etaMs or a standing bid of the agent card is not valid"
        raise ServiceError(ErrorCode.INVALID_REQUEST, detail, problems.kept)


async def _check_schemas(caller: str, card: AgentCard) -> None:
    """Refuse schemas that cannot be compiled or cost too much. They are compiled in a thread.

    Raises:
        ServiceError: INVALID_REQUEST with all problems.
    """
    schemas = [
        (f"acard.capabilities[{position}].{member}", write_json(schema))
        for position, one in enumerate(card.capabilities)
        for member, schema in (
            ("inputSchema", one.input_schema),
            ("outputSchema", one.output_schema),
        )
        if schema is not None
    ]
    if not schemas:
        return
    problems = await in_thread(caller, IN_LOOP_BYTES_MAX + 1, partial(_schema_problems, schemas))
    if problems:
        detail = "a schema of the agent card cannot be used"
        raise ServiceError(ErrorCode.INVALID_REQUEST, detail, problems.kept)


def _schema_problems(schemas: Sequence[tuple[str, bytes]]) -> ProblemList:
    problems = ProblemList()
    for where, text in schemas:
        judge = _small_schema_defect if len(text) <= SMALL_SCHEMA_BYTES else schema_defect
        defect = judge(text)
        if defect is not None:
            problems.append(defect.as_problem(where))
    return problems


# Cached, because the cards of a fleet and repeated registrations have the same schemas.
@lru_cache(maxsize=1_024)
def _small_schema_defect(text: bytes) -> SchemaDefect | None:
    return schema_defect(text)


def check_size(body: Any, written_bytes: int) -> None:
    """Refuse a body that is larger than the largest card and the other members together.

    The size is checked first, because checking a body of the largest permitted size takes 0.1 s.

    Args:
        body: the parsed body.
        written_bytes: the bytes of the received text. If they exceed the bound, the body is
            serialized again, because blanks and escapes do not count.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    most = CARD_BYTES_MAX + BESIDE_BYTES_MAX
    if written_bytes > most and (size := len(write_json(body))) > most:
        raise _too_large(size)


def _too_large(size: int) -> ServiceError:
    expected = f"an agent card of at most {CARD_BYTES_MAX} bytes"
    return invalid("acard", f"{size} bytes", expected)


def _public_key(card: AgentCard) -> str | None:
    """Return the Ed25519 public key of a card's agent: base64 of 32 bytes, or None.

    A `did:key` contains its key, so the key in its card is ignored.

    Raises:
        ServiceError: INVALID_REQUEST: the key in the card is invalid.
    """
    own, text = key_of_did(card.did), card.public_key
    if text is None:
        return own
    try:
        public_key = base64.b64encode(key_bytes(text)).decode()
    except ValueError:
        raise invalid("acard.publicKey", text, "base64 of 32 bytes") from None
    return own or public_key


@dataclass(frozen=True, slots=True)
class _Signed:
    """What a card's signature permits to a caller who is neither the owner nor an administrator.

    `is_by_its_key`: the agent's key made the signature, so the caller need not be the owner.
    `proof`: how the signature proves the owner of the DID; None if it does not prove the owner.
    `revision`: the revision of the stored card against which the signature was checked.
    `is_unchanged`: the card equals the stored card.
    """

    is_by_its_key: bool = False
    proof: OwnershipProof | None = None
    revision: int | None = None
    is_unchanged: bool = False


def _proof_by_credential(principal: Principal, body: Registration) -> OwnershipProof | None:
    """Return how the caller's credential proves that the DID belongs to the named owner, or None.

    An administrator who names an owner proves the ownership (`OPERATOR`). A caller that registers
    its own DID as the owner of itself proves it (`OWN_CREDENTIAL`), with one exception: if the
    credential is a signature of the DID, only a `did:key` is proven. The key of any other DID comes
    from the claim that is to be proven.
    """
    did = body.acard.parsed.did
    if principal.is_admin and body.owner_did is not None:
        return OwnershipProof.OPERATOR
    is_by_claim = principal.key_id == DID_KEY_ID and key_of_did(did) is None
    is_itself = denial(principal, None, (did,)) is None and (body.owner_did or did) == did
    is_proof = is_itself and not is_by_claim and not principal.is_admin
    return OwnershipProof.OWN_CREDENTIAL if is_proof else None


def _by_signature_alone(stored: RowDict | None, body: Registration) -> _Signed:
    """Return what a valid signature over only the card permits, without a card proof.

    The caller may have copied the signed card from another place, so the signature permits little.
    If the DID is not registered, the caller claims it, as with an unsigned card. If the card equals
    the stored card of an active agent, the registration is accepted and changes nothing. Decision
    signed-requests-and-claims.

    Raises:
        ServiceError: FORBIDDEN: the card differs from the stored card.
    """
    card = body.acard.parsed
    if stored is None:
        return _Signed()
    known = current_card(stored)
    is_same = stored["status"] == "active" and card.to_json() == known
    if not is_same or body.signing_secret is not None:
        raise ServiceError(
            ErrorCode.FORBIDDEN,
            f"the card of {card.did} can only be changed by its owner, or with a signature"
            " over card and cardProof",
        )
    return _Signed(is_by_its_key=True, revision=stored["revision"], is_unchanged=True)


def _by_proof(
    services: Services, stored: RowDict | None, body: Registration, owner_did: str
) -> _Signed:
    """Return what a valid signature over the card and the card proof permits.

    1. Check that the proof was made for this deployment, recently, and with this signing secret.
    2. Decide whether the key proves the ownership. The key of a `did:key` or a `did:web` proves it.
       The key of any other DID comes from the card of its first registration, and proves nothing.
    3. Check that the proof names the expected owner.

    Raises:
        ServiceError: FORBIDDEN or CONFLICT.
    """
    card, settings = body.acard.parsed, services.settings
    assert body.card_proof is not None, card.did
    proof = body.card_proof.members
    check_audience(proof.audience, (*settings.own_urls, *settings.signed_urls))  # 1
    check_age(proof.issued_at, services.now_ms())
    check_secret(body.signing_secret, proof.signing_secret_sha256)
    is_own_key = key_of_did(card.did) is not None or is_did_web(card.did)  # 2
    is_settled = stored is not None and (stored["proven_by"] is not None or not is_own_key)
    expected = stored["owner_did"] if stored is not None and is_settled else owner_did
    if proof.owner_did != expected:  # 3
        raise ServiceError(
            ErrorCode.FORBIDDEN,
            f"got a cardProof that names the owner {proof.owner_did}, expected {expected}",
        )
    return _Signed(
        is_by_its_key=stored is not None,
        proof=OwnershipProof.SIGNATURE if is_own_key else None,
        revision=None if stored is None else stored["revision"],
    )


async def _signing_keys(
    services: Services,
    account: str,
    stored: RowDict | None,
    body: Registration,
    own_key: str | None,
) -> tuple[str, ...]:
    """Return the keys, one of which must have signed the card.

    For a `did:key` this is the key that the DID contains. For an unproven `did:web` with a card
    proof these are the keys of its DID document. Otherwise this is the key in the registry, or the
    key in the card if the DID is not registered.

    Args:
        services: the replica's services.
        account: the DID or the address under which the fetch of a DID document is counted.
        stored: the agent's row; None if the DID is not registered.
        body: the registration.
        own_key: the key of the card, as `_public_key` returns it.

    Raises:
        ServiceError: INVALID_SIGNATURE, RATE_LIMITED or OVERLOADED, if a document must be fetched.
    """
    did = body.acard.parsed.did
    is_proven = stored is not None and stored["proven_by"] is not None
    if is_did_web(did) and body.card_proof is not None and not is_proven:
        return await services.did_documents.keys(did, account, services.clock_ms())
    key = key_of_did(did) or (own_key if stored is None else stored["public_key"])
    return () if key is None else (key,)


def _pinned_key(card: AgentCard, key: str, own_key: str | None) -> str | None:
    """Return the key to store in the registry.

    It is the card's key. If the card of a `did:web` has no key, it is the key of the signature.
    """
    return key if own_key is None and is_did_web(card.did) else own_key


def _signer(body: Registration, keys: Sequence[str]) -> str:
    """Return the key that verifies the card's signature.

    Raises:
        ServiceError: INVALID_SIGNATURE: none of the keys verifies it.
    """
    did = body.acard.parsed.did
    if not keys:
        raise ServiceError(ErrorCode.INVALID_SIGNATURE, f"no key is known for {did}")
    proof = None if body.card_proof is None else body.card_proof.raw
    try:
        message = signed_bytes(body.acard.raw, proof, canonical)
        for key in keys:
            if is_signed_by(key, message, body.acard_signature):
                return key
    except ValueError:  # A card without a canonical form cannot have been signed.
        pass
    raise ServiceError(
        ErrorCode.INVALID_SIGNATURE,
        f"acardSignature is not a valid signature of {did} over this acard",
    )


def _sealed(services: Services, secret: str | None) -> bytes | None:
    if secret is None:
        return None
    keys = services.settings.deployment_keys
    return seal(secret, keys, os.urandom(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
