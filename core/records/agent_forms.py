"""The forms in which agents are registered and changed, as JSON Schemas.

What judges them is `serve_app`'s; the card itself is `agent.py`'s. Spec: Agent card, Registry;
contract.md section 3 (registration body) and section 6 (Registry).
"""

from __future__ import annotations

from typing import Final

from core.records.agent import AgentCard
from core.records.api.kinds import Did
from core.records.api.shape import REFERENCE, Schema, Schemas

BULK_MAX: Final = 1_000
SIGNING_SECRET_CHARS_MAX: Final = 1_024


class Card:
    """An agent's advertisement; members that are not named here are kept."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a card, and keep those of its parts."""
        card = AgentCard.model_json_schema(by_alias=True, ref_template=REFERENCE + "{model}")
        schemas.components.update(card.pop("$defs"))
        return card


class Registration:
    """A card to be registered, and what the registry keeps beside it."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a registration."""
        return {
            "type": "object",
            "properties": {"acard": schemas.of(Card), **_beside(schemas)},
            "required": ["acard"],
        }


class FlatRegistration:
    """A registration with the card's members in the body itself; most of them may be missing."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a flat registration."""
        return {
            "type": "object",
            "properties": {
                "did": schemas.of(Did),
                "name": {"type": ["string", "null"]},
                "endpoint": {"type": "string"},
                "version": {"type": ["integer", "string"]},
                "capabilities": {"type": "array", "items": {"type": ["object", "string"]}},
                **_beside(schemas),
            },
            "required": ["did", "capabilities"],
            "additionalProperties": True,
        }


class BulkRegistration:
    """Many registrations; each has its own reply or problem."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a bulk of registrations."""
        items = {"anyOf": [schemas.of(Registration), schemas.of(FlatRegistration)]}
        agents = {"type": "array", "minItems": 1, "maxItems": BULK_MAX, "items": items}
        return {"type": "object", "properties": {"agents": agents}, "required": ["agents"]}


class CardChange:
    """Members of a card to change (RFC 7396 JSON merge patch); null removes one."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a change."""
        secret = _beside(schemas)["signingSecret"]
        return {
            "type": "object",
            "properties": {"acard": {"type": "object"}, "signingSecret": secret},
            "additionalProperties": True,
        }


def _beside(schemas: Schemas) -> Schema:
    """Return the members of a registration beside the card."""
    return {
        "ownerDid": schemas.of(Did),
        "signingSecret": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": SIGNING_SECRET_CHARS_MAX,
        },
        "acardSignature": {"type": "string", "description": "Ed25519 over the JCS form of acard"},
    }
