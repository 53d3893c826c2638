"""The agent card (ACARD): the identity, endpoint, capabilities and prices of an agent.

Members of a card that this file does not know are stored, so that a card is returned exactly as it
was registered.
Reference: features.md (Agent cards).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from core.json_bounds import INTEGER_MAX, as_whole
from core.records.bounds import (
    ACCEPTED_VERIFIERS_MAX,
    ANY_VERIFIERS,
    CAPABILITY_ID_PATTERN,
    CARD_ENDPOINT_PATTERN,
    DID_CHARS_MAX,
    DID_PATTERN,
    DISPATCH_PATH_PATTERN,
    NAME_CHARS_MAX,
    TEXT_CHARS_MAX,
    TRUSTED_VERIFIERS,
    is_did,
)

CapabilityId = Annotated[str, StringConstraints(pattern=CAPABILITY_ID_PATTERN, strict=True)]
AgentDid = Annotated[
    str, StringConstraints(pattern=DID_PATTERN, max_length=DID_CHARS_MAX, strict=True)
]
Whole = Annotated[StrictInt, BeforeValidator(as_whole)]
ShortText = Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX)]
FreeText = Annotated[str, StringConstraints(max_length=TEXT_CHARS_MAX)]
Endpoint = Annotated[
    str,
    StringConstraints(pattern=CARD_ENDPOINT_PATTERN, max_length=2048, strict=True),
]

# 10^9 credits, the largest amount that the ledger can store (money.md, Units).
PRICE_CENTS_MAX = 10**11
CAPABILITIES_MAX = 100

# A card is public, so it must not contain credentials. Members with these names are credentials.
# Names are compared in lower case and without separators.
_SECRET_NAMES: Final = frozenset(
    ("authorization", "bearer", "cookie", "jwt", "pwd", "token", "xauth", "xtoken")
)
# Members whose names have these endings are credentials, too ("openaiApiKey"). "token" is not among
# the endings, because a card may contain a price per token.
_SECRET_ENDINGS: Final = (
    "apikey", "accesskey", "privatekey", "secretkey", "secretaccesskey", "signingkey",
    "accesstoken", "apitoken", "authtoken", "bearertoken", "heartbeattoken", "idtoken",
    "refreshtoken", "sessiontoken", "secrettoken", "secret", "password", "passwd", "passphrase",
    "credential", "mnemonic", "proxyauthorization",
)  # fmt: skip
# Schemas are not searched for credentials, because a schema only describes values that others send.
_SCHEMAS: Final = ("inputSchema", "outputSchema")
_NOT_LETTERS: Final = re.compile(r"[^a-z]")


def _accepted_verifiers(value: object) -> object:
    if value is None or value in (TRUSTED_VERIFIERS, ANY_VERIFIERS):
        return value
    if type(value) is list and len(value) <= ACCEPTED_VERIFIERS_MAX and all(map(is_did, value)):
        return value
    raise ValueError(
        f"expected '{TRUSTED_VERIFIERS}', '{ANY_VERIFIERS}' or an array of at most"
        f" {ACCEPTED_VERIFIERS_MAX} DIDs"
    )


# The verifiers that an agent accepts if the payer of a node chooses the verifiers' capability.
AcceptedVerifiers = Annotated[
    str | list[str] | None,
    BeforeValidator(_accepted_verifiers),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [TRUSTED_VERIFIERS, ANY_VERIFIERS]},
                {
                    "type": "array",
                    "maxItems": ACCEPTED_VERIFIERS_MAX,
                    "items": {"type": "string", "pattern": DID_PATTERN},
                },
                {"type": "null"},
            ]
        }
    ),
]


class _OpenRecord(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True
    )


class Capability(_OpenRecord):
    """A capability that an agent offers, with its price in cents if the card has one."""

    id: CapabilityId = Field(description="Id of the capability, such as cap.text.translate.v1.")
    description: FreeText = Field(default="", description="What the capability does, in words.")
    input_schema: dict[str, Any] | None = Field(
        default=None, description="JSON Schema of the inputs. Default: inputs are not checked."
    )
    output_schema: dict[str, Any] | None = Field(
        default=None, description="JSON Schema of the result. Default: results are not checked."
    )
    price_cents: Annotated[Whole, Field(ge=0, le=PRICE_CENTS_MAX)] | None = Field(
        default=None,
        alias="price_cents",
        description="Price of one node in cents. Default: free, or the capability's price.",
    )


class CardMetadata(_OpenRecord):
    """Information about an agent for people."""

    name: ShortText | None = Field(default=None, description="Name of the agent, for people.")
    author: ShortText | None = Field(default=None, description="Author of the agent.")
    model: ShortText | None = Field(default=None, description="Language model that it uses.")


class AgentCard(_OpenRecord):
    """An agent card, as it is registered and as it is served at `/.well-known/acard.json`."""

    did: AgentDid = Field(description="DID of the agent.")
    endpoint: Endpoint = Field(description="URL at which the agent is reached.")
    version: Whole = Field(ge=1, le=INTEGER_MAX, description="Version of the card.")
    capabilities: list[Capability] = Field(
        min_length=1, max_length=CAPABILITIES_MAX, description="What the agent can do."
    )
    metadata: CardMetadata | None = Field(default=None, description="Information for people.")
    public_key: ShortText | None = Field(
        default=None, description="Ed25519 public key, base64. Default: the agent has no key."
    )
    dispatch_path: (
        Annotated[str, StringConstraints(pattern=DISPATCH_PATH_PATTERN, max_length=NAME_CHARS_MAX)]
        | None
    ) = Field(default=None, description="Path of dispatches. Default: `/<service>/node`.")
    max_concurrency: Annotated[Whole, Field(ge=1, le=INTEGER_MAX)] | None = Field(
        default=None, description="Dispatches that the agent takes at once. Default: 32."
    )
    region: ShortText | None = Field(default=None, description="Region in which the agent runs.")
    subnet: ShortText | None = Field(
        default=None, description="Id of a subnet that the agent's owner has joined."
    )
    accepted_verifiers: AcceptedVerifiers = Field(
        default=None, description="Verifiers that the agent accepts. Default: `trusted`."
    )

    def to_json(self) -> dict[str, Any]:
        """Return the card in its JSON form, without absent members."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def said_in_card(card: Mapping[str, Any], member: str) -> Any:
    """Return a member of a card, or of the card's metadata; None if both lack it."""
    metadata = card.get("metadata")
    inside = metadata.get(member) if isinstance(metadata, dict) else None
    return card.get(member, inside)


def find_secrets(card: Any, path: str) -> Iterator[str]:
    """Yield the path of each member of a card that contains a credential.

    Args:
        card: the card that the client sent, any JSON value.
        path: the path of the card in the request.
    """
    offered = card.get("capabilities") if isinstance(card, dict) else None
    if isinstance(offered, list):
        card = {**card, "capabilities": [_without_schemas(one) for one in offered]}
    return _secrets_in(card, path)


def _without_schemas(capability: Any) -> Any:
    if not isinstance(capability, dict):
        return capability
    return {name: value for name, value in capability.items() if name not in _SCHEMAS}


def without_standing_bids(card: dict[str, Any]) -> dict[str, Any]:
    """Return a card without its standing bids, which only the agent's owner may read.

    The hashes of the card lineage cover this form. So any reader can check a hash, but cannot find
    a bid by trying amounts. money.md (Auctions).
    """
    offered = card["capabilities"]
    if not any("standingBid" in one for one in offered):
        return card
    shown = [
        {name: value for name, value in one.items() if name != "standingBid"} for one in offered
    ]
    return {**card, "capabilities": shown}


def _secrets_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from _secrets_in(item, f"{path}[{position}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            if _is_secret(name, item):
                yield f"{path}.{name}"
            elif isinstance(item, dict | list):
                yield from _secrets_in(item, f"{path}.{name}")


def _is_secret(name: str, value: Any) -> bool:
    """Say whether a member contains a credential. Empty values and booleans are no credentials."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    letters = _NOT_LETTERS.sub("", name.lower())
    return letters in _SECRET_NAMES or letters.removesuffix("s").endswith(_SECRET_ENDINGS)


DIFFERENCES_MAX: Final = 20
_CAPABILITIES: Final = "capabilities"


def find_differences(card: Mapping[str, Any], served: object) -> list[str]:
    """Return the members of a registered card that differ in the card that the agent serves.

    Args:
        card: the registered card in its JSON form.
        served: the JSON value that the agent serves.

    Returns: at most `DIFFERENCES_MAX` names such as `version` and
        `capabilities.cap.x.v1.price_cents`. `capabilities` means that the agent serves further
        capabilities; "" means that it serves no JSON object.
    """
    if not isinstance(served, dict):
        return [""]
    found = [
        name for name in sorted(card) if name != _CAPABILITIES and card[name] != served.get(name)
    ]
    listed = served.get(_CAPABILITIES)
    others = {
        one["id"]: one
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and isinstance(one.get("id"), str)
    }
    for capability in card[_CAPABILITIES]:
        path, other = f"{_CAPABILITIES}.{capability['id']}", others.pop(capability["id"], None)
        if other is None:
            found.append(path)
            continue
        found += [
            f"{path}.{name}" for name in sorted(capability) if capability[name] != other.get(name)
        ]
    if others:
        found.append(_CAPABILITIES)
    return found[:DIFFERENCES_MAX]
