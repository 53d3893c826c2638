"""The offers of agents in the form that planning uses. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

MEMBERS_MAX: Final = 16
_NAME: Final = re.compile(r"[\w-]{1,128}")
ANY: Final = "any"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the object that a schema describes.

    `kind`: the member's JSON type, followed by a colon and the format if it has one: `string:uri`.
    """

    name: str
    kind: str
    is_required: bool = False


# Compared by identity: dicts have offers as keys, and hashing all members would take up to a third
# of the planning time.
@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A capability, with the figures of one agent that offers it.

    `inputs`, `outputs`: the members of the agent's schemas. `price`: the agent's price,
    micro-credits; None: paid by tokens. `latency_ms`: the agent's average latency; None: unknown.
    `succeeded`: the number of the agent's successes. `owner`: the DID of the agent's owner.
    """

    capability_id: str
    description: str
    inputs: tuple[Member, ...] = ()
    outputs: tuple[Member, ...] = ()
    price: int | None = 0
    latency_ms: float | None = None
    succeeded: int = 0
    owner: str = ""
    input_names: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_names", frozenset(one.name for one in self.inputs))


def members_of(schema: Mapping[str, Any] | None) -> tuple[Member, ...]:
    """Return the first `MEMBERS_MAX` members that the JSON Schema of an object names.

    A member is left out if a mapping would have to quote its name.
    """
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping):
        return ()
    needed = (schema or {}).get("required")
    required = set(map(str, needed)) if isinstance(needed, list) else set()
    return tuple(
        Member(name, _kind(inner), name in required)
        for name, inner in islice(properties.items(), MEMBERS_MAX)
        if _NAME.fullmatch(name)
    )


def fits(output: str, wanted: str) -> bool:
    """Return whether an output of one kind can fill an input of another kind."""
    if ANY in (output, wanted):
        return True
    output_type, _, output_format = output.partition(":")
    wanted_type, _, wanted_format = wanted.partition(":")
    if output_type != wanted_type and (output_type, wanted_type) != ("integer", "number"):
        return False
    return output_format == wanted_format


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return ANY
    kind = schema.get("type")
    if not isinstance(kind, str):
        return ANY
    mark = schema.get("contentMediaType") or schema.get("format") or ""
    return f"{kind}:{str(mark).partition('/')[0]}" if mark else kind
