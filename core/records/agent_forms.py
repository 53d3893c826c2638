"""The request bodies that register and change agents. `agent.py` has the agent card itself.

A registration arrives in one of two forms: `{acard, …}`, or the flat form of `/v1/agent/register`.
In the flat form, names, the endpoint and capability ids may be missing. `serve_app` decides who may
register an agent.
Reference: features.md (Agent cards, Registration).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import ValidationError

from core.errors import PROBLEMS_MAX, Problem, ProblemList
from core.json_bounds import INTEGER_MAX
from core.records.agent import AgentCard, find_secrets
from core.records.api.kinds import Did, TimeMs, text, whole
from core.records.api.shape import (
    REFERENCE,
    Body,
    Json,
    Kind,
    Maybe,
    MaybeNull,
    Schema,
    Schemas,
    bulk_schema,
    members_of,
    read,
)
from core.records.model_problems import problem_of
from core.wording import kind_of

AUDIENCE_CHARS_MAX: Final = 2_048
HASH_CHARS_MAX: Final = 71
SIGNING_SECRET_CHARS_MAX: Final = 1_024
# The most bytes of the members beside a card (signing secret, DID, signature), names included.
BESIDE_BYTES_MAX: Final = 8 * 1_024
# Generated ids of capabilities contain this many hex digits of the hash of the agent's DID.
_OWNER_DIGITS: Final = 12
# Cards are public. The message never contains the secret, because clients log problems.
_NO_SECRETS: Final = "no secrets in a card; put signingSecret beside `acard`"
_NO_ENDPOINT: Final = "http://absent.invalid"


@dataclass(frozen=True, slots=True)
class Card:
    """An agent card. Members without a description here are stored unchanged.

    `raw`: the card as the client sent it; the card's signature covers this form.
    """

    raw: Json
    parsed: AgentCard

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a card; add the schemas of its parts to `schemas`."""
        card = AgentCard.model_json_schema(by_alias=True, ref_template=REFERENCE + "{model}")
        schemas.components.update(card.pop("$defs"))
        return card

    @classmethod
    def read_value(cls, raw: Any, path: str, problems: ProblemList) -> Card | None:
        """Return the card, or None after adding its problems to `problems`."""
        if not isinstance(raw, dict):
            problems.append(Problem(path, kind_of(raw), "an agent card"))
            return None
        secrets = [Problem(where, "a secret", _NO_SECRETS) for where in find_secrets(raw, path)]
        if secrets:
            problems.extend(secrets)
            return None
        try:
            card = AgentCard.model_validate(raw)
        except ValidationError as error:
            problems.extend(
                problem_of(path + "".join(_step(part) for part in item["loc"]), item)
                for item in error.errors(include_url=False)[:PROBLEMS_MAX]
            )
            return None
        ((name, count),) = Counter(one.id for one in card.capabilities).most_common(1)
        if count > 1:
            got = f"{name} {count} times"
            problems.append(Problem(f"{path}.capabilities", got, "each capability once"))
        return cls(raw, card)


class CardWithGaps(Card):
    """A card that may lack the endpoint. An agent without an endpoint is offline."""

    @classmethod
    def read_value(cls, raw: Any, path: str, problems: ProblemList) -> Card | None:
        """Return the card, or None after adding its problems to `problems`."""
        if not isinstance(raw, dict) or raw.get("endpoint") is not None:
            return Card.read_value(raw, path, problems)
        card = Card.read_value({**raw, "endpoint": _NO_ENDPOINT}, path, problems)
        if card is None:
            return None
        return cls(raw, card.parsed.model_copy(update={"endpoint": ""}))


class CardProofMembers(Body, is_closed=True):
    """The members that `acardSignature` covers besides the card."""

    audience: Annotated[str, text(1, AUDIENCE_CHARS_MAX), "URL of this deployment."]
    owner_did: Annotated[Did, "DID of the owner."]
    issued_at: Annotated[TimeMs, "Time of the signature, at most one day ago."]
    counter: Annotated[
        int, whole(1, INTEGER_MAX), "A number above that of every earlier signed card."
    ]
    signing_secret_sha256: Annotated[
        MaybeNull[Annotated[str, text(1, HASH_CHARS_MAX)]],
        "`sha256:` and the hash in hex of `signingSecret`.",
    ] = None


@dataclass(frozen=True, slots=True)
class CardProof:
    """The members that `acardSignature` covers besides the card."""

    raw: Json
    members: CardProofMembers

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a proof."""
        return schemas.of(CardProofMembers)

    @classmethod
    def read_value(cls, raw: Any, path: str, problems: ProblemList) -> CardProof | None:
        """Return the proof, or None after adding its problems to `problems`."""
        members = read(CardProofMembers, raw, problems, path)
        return None if members is None else cls(raw, members)


class Registration(Body):
    """An agent card to register, with secrets and proofs beside it."""

    acard: Annotated[Card, "The agent card."]
    owner_did: Annotated[
        Maybe[Did], "DID of the owner. Default: the caller; only administrators may name another."
    ] = None
    signing_secret: Annotated[
        MaybeNull[Annotated[str, text(1, SIGNING_SECRET_CHARS_MAX)]],
        "Secret that signs the dispatches to this agent (HMAC-SHA256).",
    ] = None
    acard_signature: Annotated[
        MaybeNull[Any],
        Kind({"type": "string"}),
        "Ed25519 over the canonical form of `acard`, or of {acard, cardProof} with a `cardProof`.",
    ] = None
    card_proof: Annotated[
        MaybeNull[CardProof], "Owner, deployment and counter that the signature covers."
    ] = None

    @classmethod
    def respelled(cls, raw: Any) -> Any:
        """Return the body with its card under `acard`; the body may also be the card itself."""
        if not isinstance(raw, dict) or "acard" in raw:
            return raw
        card, beside = _parted(raw)
        return {"acard": card, **beside}


class FlatRegistration(Registration):
    """A registration with the members of the card in the body itself. Most of them are optional."""

    acard: CardWithGaps

    @classmethod
    def respelled(cls, raw: Any) -> Any:
        """Return the body with its card under `acard`; fill in missing members of the card."""
        if not isinstance(raw, dict) or "acard" in raw:
            return raw
        card, beside = _parted(raw)
        for name in ("name", "endpoint", "version"):
            if card.get(name) is None:
                card.pop(name, None)
        if isinstance(card.get("name"), str):
            metadata = card.get("metadata")
            named = {"name": card.pop("name")}
            card["metadata"] = {**named, **metadata} if isinstance(metadata, dict) else named
        card.setdefault("version", 1)
        if isinstance(card["version"], str):
            leading = re.match(r"\d{1,9}", card["version"])
            card["version"] = max(1, int(leading.group())) if leading else 1
        if isinstance(card.get("capabilities"), list):
            card["capabilities"] = [
                _capability(item, card.get("did"), index)
                for index, item in enumerate(card["capabilities"])
            ]
        return {"acard": card, **beside}

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a flat registration."""
        beside = {
            member.json_name: schemas.of_member(member)
            for member in members_of(Registration)
            if member.json_name in _BESIDE
        }
        return {
            "type": "object",
            "properties": {
                "did": {**schemas.of(Did), "description": "DID of the agent."},
                "name": {
                    "type": ["string", "null"],
                    "description": "Name of the agent; stored as `metadata.name`.",
                },
                "endpoint": {
                    "type": "string",
                    "description": "URL of the agent. Default: none, the agent is offline.",
                },
                "version": {
                    "type": ["integer", "string"],
                    "description": "Version of the card; of a text its leading number counts.",
                    "default": 1,
                },
                "capabilities": {
                    "type": "array",
                    "items": {"type": ["object", "string"]},
                    "description": "Capabilities, or their ids; missing ids are made from the DID.",
                },
                **beside,
            },
            "required": ["did", "capabilities"],
            "additionalProperties": True,
        }


class BulkRegistration:
    """Several registrations. Each has its own reply or problem."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a bulk of registrations."""
        items = schemas.of((Registration, FlatRegistration))
        return bulk_schema("agents", items, "The registrations.")


class CardChange:
    """A JSON merge patch (RFC 7396) of an agent card; null removes a member."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a change."""
        (secret,) = (one for one in members_of(Registration) if one.name == "signing_secret")
        return {
            "type": "object",
            "properties": {
                "acard": {
                    "type": "object",
                    "description": "Members to change; they may stand in the body itself.",
                },
                secret.json_name: schemas.of_member(secret),
            },
            "additionalProperties": True,
        }


# The members of a registration beside its card.
_BESIDE: Final = tuple(one.json_name for one in members_of(Registration) if one.name != "acard")


def _parted(raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a body into the members of the card and the members beside the card."""
    beside = {name: raw[name] for name in _BESIDE if name in raw}
    return {name: value for name, value in raw.items() if name not in beside}, beside


def _capability(item: Any, did: Any, index: int) -> Any:
    """Return a capability with an id: `id`, `capability_id`, or one generated from the DID."""
    if isinstance(item, str):
        return {"id": item}
    if not isinstance(item, dict) or item.get("id") is not None:
        return item
    capability = {name: value for name, value in item.items() if name != "capability_id"}
    capability["id"] = item.get("capability_id")
    if capability["id"] is None and isinstance(did, str):
        owner = hashlib.sha256(did.encode("utf-8", "replace")).hexdigest()[:_OWNER_DIGITS]
        capability["id"] = f"cap.{owner}.{index}.v1"
    return capability


def _step(part: int | str) -> str:
    return f"[{part}]" if isinstance(part, int) else f".{part}"
