"""An agent registration judged and turned into the command that stores it.

Two spellings arrive: `{acard, …}` and the flat one of `/v1/agent/register`, in which names, the
endpoint and capability ids may be missing. Spec: Agent card, Registry; contract.md 3 and 6.
"""

from __future__ import annotations

import base64
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
from pydantic import ValidationError

from core.canonical import canonical
from core.errors import ErrorCode, Problem, ServiceError
from core.market.pricing import parse_price
from core.market.standing_bid import parse_offer
from core.records.agent import AgentCard, find_secrets, without_secrets
from core.records.agent_forms import SIGNING_SECRET_CHARS_MAX
from core.records.api.kinds import Did
from core.records.api.shape import kind_of, value_of
from core.trust.access import Principal, may
from core.trust.derived_keys import KeyPurpose
from core.trust.did_key import key_of_did
from core.trust.sealing import NONCE_BYTES, seal
from core.trust.signatures import is_signed_by, key_bytes
from ledger.agents.agent_commands import RegisterAgent
from ledger.reads.reader import RowDict
from serve_app.http.calls import invalid
from serve_app.services import Services

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]+")
# What a registration holds beside the card, also where the card's members stand in the body itself.
_BESIDE = ("signingSecret", "acardSignature", "ownerDid")
_NO_ENDPOINT = "http://absent.invalid"


async def registration(services: Services, principal: Principal, body: Any) -> RegisterAgent:
    """Judge a registration and return its command.

    1. the card's form; 2. in whose name; 3. the endpoint's address; 4. the key and the signature,
    and what the signature alone permits; 5. the secret, sealed.

    Args:
        services: the replica's.
        principal: the caller, who claims a new DID.
        body: the request as parsed JSON.

    Raises:
        ServiceError: INVALID_REQUEST with every defect, POLICY_DENIED, INVALID_SIGNATURE,
            FORBIDDEN or CONFLICT.
    """
    if not isinstance(body, dict):
        raise invalid("$", kind_of(body), "a JSON object with `acard`")
    raw_card = body.get("acard", _without(body, _BESIDE))
    card = _card(raw_card, "acard" if "acard" in body else "$")
    owner_did = value_of(Did, "ownerDid", body.get("ownerDid", principal.did))
    code = may(principal, None, (owner_did,))
    if code is not None:
        raise ServiceError(code, f"{principal.did} may not register agents for {owner_did}")
    if card.endpoint:
        await _check_endpoint(services, card.endpoint)
    public_key = None if card.public_key is None else _key_text(card.public_key)
    card_json = orjson.dumps(card.to_json()).decode()
    _check_size(services, card_json)
    signature = body.get("acardSignature")
    signed = _Signed()
    if signature is not None:
        stored = await services.reader.agent(card.did)
        _check_signature(stored, card, raw_card, signature, public_key)
        owners = () if stored is None else (stored["owner_did"],)
        if may(principal, None, owners) is not None:
            signed = _by_signature_alone(stored, card, body)
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
        secret_encrypted=_sealed(services, body.get("signingSecret")),
        revision_expected=signed.revision,
        is_unchanged=signed.is_unchanged,
    )


def unflattened(body: Any) -> Any:
    """Return a flat registration in the `{acard, …}` spelling; one that has `acard` as it is."""
    if not isinstance(body, dict) or "acard" in body:
        return body
    card = _without(body, _BESIDE)
    if isinstance(card.get("name"), str):
        metadata = card.get("metadata")
        named = {"name": card.pop("name")}
        card["metadata"] = {**named, **metadata} if isinstance(metadata, dict) else named
    card.setdefault("version", 1)
    if isinstance(card["version"], str):
        leading = re.match(r"\d{1,9}", card["version"])
        card["version"] = max(1, int(leading.group())) if leading else 1
    card.setdefault("endpoint", "")
    if isinstance(card.get("capabilities"), list):
        card["capabilities"] = [_capability(item) for item in card["capabilities"]]
    return {"acard": card, **{name: body[name] for name in _BESIDE if name in body}}


def changed(did: str, card: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the registration that changes a card as `body` says (RFC 7396 JSON merge patch).

    Args:
        card: the stored one.
        body: `{acard: {…}}` or the members themselves; null removes one. `signingSecret` beside.

    Raises:
        ServiceError: INVALID_REQUEST; `acard` is no object, or names another agent.
    """
    beside = {"signingSecret": body["signingSecret"]} if "signingSecret" in body else {}
    patch = body.get("acard", _without(body, beside))
    if not isinstance(patch, dict):
        raise invalid("acard", kind_of(patch), "an object with the members to change")
    if patch.get("did", did) != did:
        raise invalid("did", str(patch["did"]), f"{did}, or nothing")
    return {"acard": _merged(without_secrets(card), patch), **beside}


def _without(members: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in names}


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    kept = old if isinstance(old, dict) else {}
    merged = {name: value for name, value in kept.items() if name not in patch}
    for name, value in patch.items():
        if value is not None:
            merged[name] = _merged(kept.get(name), value)
    return merged


def _capability(item: Any) -> Any:
    if isinstance(item, str):
        return {"id": item}
    if isinstance(item, dict) and "id" not in item and isinstance(item.get("name"), str):
        return {**item, "id": _NOT_IN_IDS.sub("-", item["name"].strip().lower()).strip("-")}
    return item


def _card(raw: Any, path: str) -> AgentCard:
    """Parse a card; all of its defects are told at once."""
    if not isinstance(raw, dict):
        raise invalid(path, kind_of(raw), "an agent card")
    secrets = tuple(find_secrets(raw, path))
    if secrets:
        # Never the value: problems are logged by clients.
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"{secrets[0]} would be public with the card; signingSecret stands beside `acard`",
            tuple(Problem(where, "a secret", "no secrets in a card") for where in secrets),
        )
    # Only the flat spelling may leave the endpoint out; it is written "" there by `unflattened`.
    is_without_endpoint = raw.get("endpoint") == ""
    try:
        card = AgentCard.model_validate(
            {**raw, "endpoint": _NO_ENDPOINT} if is_without_endpoint else raw
        )
    except ValidationError as error:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            "the agent card is not valid",
            tuple(
                Problem(_path(path, item["loc"]), str(item.get("input"))[:200], item["msg"])
                for item in error.errors(include_url=False)
            ),
        ) from None
    counts = Counter(capability.id for capability in card.capabilities)
    for name, count in counts.most_common(1):
        if count > 1:
            raise invalid(f"{path}.capabilities", f"{name} {count} times", "each capability once")
    _check_prices(raw["capabilities"], path)
    return card.model_copy(update={"endpoint": ""}) if is_without_endpoint else card


def _check_prices(capabilities: list[dict[str, Any]], path: str) -> None:
    problems: list[Problem] = []
    for position, capability in enumerate(capabilities):
        where = f"{path}.capabilities[{position}]"
        problems += parse_price(capability, where)[1]
        if capability.get("standingBid") is not None:
            problems += parse_offer(capability["standingBid"], f"{where}.standingBid")[1]
    if problems:
        detail = "a price or standing bid of the agent card is not valid"
        raise ServiceError(ErrorCode.INVALID_REQUEST, detail, tuple(problems))


def _path(base: str, location: tuple[int | str, ...]) -> str:
    path = base
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _check_size(services: Services, card_json: str) -> None:
    size, most = len(card_json.encode()), services.settings.card_bytes_max
    if size > most:
        raise invalid("acard", f"{size} bytes", f"an agent card of at most {most} bytes")


async def _check_endpoint(services: Services, endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if not host:
        raise invalid("acard.endpoint", endpoint, "an http or https URL with a host")
    reason = await services.denied_endpoint(host, port)
    if reason is not None:
        raise ServiceError(
            ErrorCode.POLICY_DENIED,
            f"agents may not live at {host}: {reason}",
            (Problem("acard.endpoint", endpoint, "an address that the egress policy allows"),),
        )


def _key_text(text: str) -> str:
    """Return an Ed25519 public key as base64 of its 32 bytes."""
    try:
        return base64.b64encode(key_bytes(text)).decode()
    except ValueError:
        raise invalid("acard.publicKey", text, "base64 of 32 bytes") from None


@dataclass(frozen=True, slots=True)
class _Signed:
    """What a card's signature permits a caller who neither owns the agent nor administrates.

    `is_proof`: it replaces ownership. `revision`: of the stored card that it was judged by.
    `is_unchanged`: the card is the stored one.
    """

    is_proof: bool = False
    revision: int | None = None
    is_unchanged: bool = False


def _by_signature_alone(
    stored: RowDict | None, card: AgentCard, body: Mapping[str, Any]
) -> _Signed:
    """Return what a good signature permits.

    1. Of a DID that is not registered, a key inside the card proves nothing, except that of a
    `did:key`: the caller claims it as with an unsigned card. 2. What the signature does not cover
    cannot come with it. 3. An older card, another one of the same version, and one of an agent that
    was deregistered since are replays, or as good as one. Decision 0097.

    Raises:
        ServiceError: FORBIDDEN or CONFLICT.
    """
    if stored is None:  # 1
        return _Signed(is_proof=key_of_did(card.did) is not None)
    if body.get("signingSecret") is not None:  # 2
        detail = f"acardSignature does not cover signingSecret: only {card.did}'s owner sets it"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
    known = orjson.loads(stored["card"])
    is_unchanged = stored["status"] == "active" and card.to_json() == known
    if card.version <= known["version"] and not is_unchanged:  # 3
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"got version {card.version} of the card of {card.did} by its signature alone, expected"
            f" more than {known['version']}, or the stored card of an active agent",
        )
    return _Signed(is_proof=True, revision=stored["revision"], is_unchanged=is_unchanged)


def _check_signature(
    stored: RowDict | None, card: AgentCard, raw_card: Any, signature: Any, own_key: str | None
) -> None:
    """Check a card's signature by the key that the registry has for the DID.

    A `did:key` is its own key; of any other DID that is not registered, the card names the key.
    """
    key = key_of_did(card.did) or (own_key if stored is None else stored["public_key"])
    if key is None:
        raise ServiceError(ErrorCode.INVALID_SIGNATURE, f"no key is known for {card.did}")
    try:
        is_its_own = is_signed_by(key, canonical(raw_card), signature)
    except ValueError:  # a card without a canonical form cannot have been signed
        is_its_own = False
    if not is_its_own:
        raise ServiceError(
            ErrorCode.INVALID_SIGNATURE, f"acardSignature is not {card.did}'s over this acard"
        )


def _sealed(services: Services, secret: Any) -> bytes | None:
    if secret is None:
        return None
    if not isinstance(secret, str) or not 0 < len(secret) <= SIGNING_SECRET_CHARS_MAX:
        raise invalid(
            "signingSecret", kind_of(secret), f"1 to {SIGNING_SECRET_CHARS_MAX} characters"
        )
    key = bytes.fromhex(services.settings.deployment_key)
    return seal(secret, key, os.urandom(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
