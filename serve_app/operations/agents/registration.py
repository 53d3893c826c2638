"""An agent registration judged and turned into the command that stores it.

Its form is `core/records/agent_forms.py`'s. Spec: Agent card, Registry; contract.md 3 and 6.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import Any

import orjson

from core.canonical import canonical
from core.errors import ErrorCode, ProblemList, ServiceError
from core.market.pricing import parse_price
from core.market.standing_bid import parse_offer
from core.records.agent import AgentCard, without_secrets
from core.records.agent_forms import BESIDE_BYTES_MAX, Registration
from core.records.api.shape import kind_of
from core.settings import Settings
from core.trust.access import Principal, denial
from core.trust.derived_keys import KeyPurpose
from core.trust.did_key import key_of_did
from core.trust.sealing import NONCE_BYTES, seal
from core.trust.signatures import is_signed_by, key_bytes
from ledger.agents.agent_commands import RegisterAgent
from ledger.reads.reader import RowDict
from serve_app.http.calls import invalid
from serve_app.operations.agents.endpoints import endpoint_refusals
from serve_app.operations.views import current_card
from serve_app.services import Services


async def registration(
    services: Services, principal: Principal, body: Registration
) -> RegisterAgent:
    """Judge a registration and return its command.

    As `registration_before_endpoint`, and the endpoint's address.

    Raises:
        ServiceError: as there, POLICY_DENIED or OVERLOADED.
    """
    command = await registration_before_endpoint(services, principal, body)
    (refused,) = await endpoint_refusals(services, principal, [command.endpoint])
    if refused is not None:
        raise refused
    return command


async def registration_before_endpoint(
    services: Services, principal: Principal, body: Registration
) -> RegisterAgent:
    """Judge a registration but for where the agent lives, and return its command.

    1. the card's prices and size; 2. in whose name; 3. the key and the signature, and what the
    signature alone permits; 4. the secret, sealed.

    Args:
        services: the replica's.
        principal: the caller, who claims a new DID.
        body: checked in its form.

    Raises:
        ServiceError: INVALID_REQUEST with every defect, INVALID_SIGNATURE, FORBIDDEN or CONFLICT.
    """
    card = body.acard.parsed
    _check_prices(body.acard.raw["capabilities"])
    owner_did = body.owner_did or principal.did
    code = denial(principal, None, (owner_did,))
    if code is not None:
        raise ServiceError(code, f"{principal.did} may not register agents for {owner_did}")
    public_key = _public_key(card)
    card_json = orjson.dumps(card.to_json()).decode()
    size = len(card_json.encode())
    if size > services.settings.card_bytes_max:
        raise _too_large(size, services.settings)
    signed = _Signed()
    if body.acard_signature is not None:
        stored = await services.reader.agent(card.did)
        _check_signature(stored, body, public_key)
        owners = () if stored is None else (stored["owner_did"],)
        if denial(principal, None, owners) is not None:
            signed = _by_signature_alone(stored, body)
    return RegisterAgent(
        key=f"register:{services.new_id()}",
        actor_did=principal.did,
        owner_did=owner_did,
        is_admin=principal.is_admin,
        is_signed=signed.is_proof,
        did=card.did,
        card_json=card_json,
        endpoint=card.endpoint,
        capability_ids=tuple(capability.id for capability in card.capabilities),
        public_key=public_key,
        secret_encrypted=_sealed(services, body.signing_secret),
        revision_expected=signed.revision,
        is_unchanged=signed.is_unchanged,
        owner_agents_max=services.settings.agents_per_owner_max,
    )


def changed(did: str, card: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the registration that changes a card as `body` says (RFC 7396 JSON merge patch).

    Args:
        card: the stored one.
        body: `{acard: {…}}` or the members themselves; null removes one. `signingSecret` beside.

    Raises:
        ServiceError: INVALID_REQUEST; `acard` is no object, or names another agent.
    """
    beside = {"signingSecret": body["signingSecret"]} if "signingSecret" in body else {}
    patch = body.get("acard", {name: body[name] for name in body if name not in beside})
    if not isinstance(patch, dict):
        raise invalid("acard", kind_of(patch), "an object with the members to change")
    if patch.get("did", did) != did:
        raise invalid("did", str(patch["did"]), f"{did}, or nothing")
    return {"acard": _merged(without_secrets(card), patch), **beside}


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
        if capability.get("standingBid") is not None:
            problems.extend(parse_offer(capability["standingBid"], f"{where}.standingBid")[1])
    if problems:
        detail = "a price or standing bid of the agent card is not valid"
        raise ServiceError(ErrorCode.INVALID_REQUEST, detail, problems.kept)


def check_size(settings: Settings, body: Any, written_bytes: int) -> None:
    """Refuse a registration or a change that is larger than a card with what may stand beside it.

    Before it is judged: that takes a tenth of a second for one as large as a body may be.

    Args:
        settings: the bound of a card.
        body: as parsed.
        written_bytes: of its text, in which blanks and escapes are no part of its size.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    most = settings.card_bytes_max + BESIDE_BYTES_MAX
    if written_bytes > most and (size := len(orjson.dumps(body))) > most:
        raise _too_large(size, settings)


def _too_large(size: int, settings: Settings) -> ServiceError:
    expected = f"an agent card of at most {settings.card_bytes_max} bytes"
    return invalid("acard", f"{size} bytes", expected)


def _public_key(card: AgentCard) -> str | None:
    """Return the Ed25519 public key that an agent gets with its card, base64 of its 32 bytes.

    A `did:key` is its own key: the one inside its card does not matter.
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
    """What a card's signature permits a caller who neither owns the agent nor administrates.

    `is_proof`: it replaces ownership. `revision`: of the stored card that it was judged by.
    `is_unchanged`: the card is the stored one.
    """

    is_proof: bool = False
    revision: int | None = None
    is_unchanged: bool = False


def _by_signature_alone(stored: RowDict | None, body: Registration) -> _Signed:
    """Return what a good signature permits.

    1. Of a DID that is not registered, a key inside the card proves nothing, except that of a
    `did:key`: the caller claims it as with an unsigned card. 2. What the signature does not cover
    cannot come with it. 3. An older card, another one of the same version, and one of an agent that
    was deregistered since are replays, or as good as one. Decision 0097.

    Raises:
        ServiceError: FORBIDDEN or CONFLICT.
    """
    card = body.acard.parsed
    if stored is None:  # 1
        return _Signed(is_proof=key_of_did(card.did) is not None)
    if body.signing_secret is not None:  # 2
        detail = f"acardSignature does not cover signingSecret: only {card.did}'s owner sets it"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
    known = current_card(stored)
    is_unchanged = stored["status"] == "active" and card.to_json() == known
    if card.version <= known["version"] and not is_unchanged:  # 3
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"got version {card.version} of the card of {card.did} by its signature alone, expected"
            f" more than {known['version']}, or the stored card of an active agent",
        )
    return _Signed(is_proof=True, revision=stored["revision"], is_unchanged=is_unchanged)


def _check_signature(stored: RowDict | None, body: Registration, own_key: str | None) -> None:
    """Check a card's signature by the key that the registry has for the DID.

    A `did:key` is its own key; of any other DID that is not registered, the card names the key.
    """
    card = body.acard.parsed
    key = key_of_did(card.did) or (own_key if stored is None else stored["public_key"])
    if key is None:
        raise ServiceError(ErrorCode.INVALID_SIGNATURE, f"no key is known for {card.did}")
    try:
        is_its_own = is_signed_by(key, canonical(body.acard.raw), body.acard_signature)
    except ValueError:  # a card without a canonical form cannot have been signed
        is_its_own = False
    if not is_its_own:
        raise ServiceError(
            ErrorCode.INVALID_SIGNATURE, f"acardSignature is not {card.did}'s over this acard"
        )


def _sealed(services: Services, secret: str | None) -> bytes | None:
    if secret is None:
        return None
    key = bytes.fromhex(services.settings.deployment_key)
    return seal(secret, key, os.urandom(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
