"""The agent card (ACARD): who an agent is, where it listens, what it can do and for how much.

Cards are open: members this file does not know are kept, so that a card comes back as registered.
Spec: Agent card; contract.md sections 3 (registration body), 4 (dispatch path), 6 (prices).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints
from pydantic.alias_generators import to_camel

CapabilityId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", strict=True)
]
AgentDid = Annotated[
    str,
    StringConstraints(pattern=r"^did:[A-Za-z0-9]+:[A-Za-z0-9._:%-]+$", max_length=255, strict=True),
]
Endpoint = Annotated[
    str, StringConstraints(pattern=r"^https?://[^\s/?#]+[^\s?#]*$", max_length=2048, strict=True)
]

# 10^9 credits, the largest amount the ledger keeps (money.md, Money type).
PRICE_CENTS_MAX = 10**11


class _OpenRecord(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True
    )


class Capability(_OpenRecord):
    """One thing an agent can do, with its price when the card carries one (cents)."""

    id: CapabilityId
    description: str = ""
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    price_cents: Annotated[StrictInt, Field(ge=0, le=PRICE_CENTS_MAX)] | None = Field(
        default=None, alias="price_cents"
    )


class CardMetadata(_OpenRecord):
    """What people read about an agent."""

    name: str | None = None
    author: str | None = None
    model: str | None = None


class AgentCard(_OpenRecord):
    """An agent's advertisement, as registered and as served at `/.well-known/acard.json`."""

    did: AgentDid
    endpoint: Endpoint
    version: StrictInt = Field(ge=1)
    capabilities: list[Capability] = Field(min_length=1, max_length=1000)
    metadata: CardMetadata | None = None
    public_key: str | None = None
    dispatch_path: Annotated[str, StringConstraints(pattern=r"^/[^\s]*$")] | None = None
    max_concurrency: Annotated[StrictInt, Field(ge=1)] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the card in its JSON form, absent members left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
