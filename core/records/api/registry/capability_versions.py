"""Versions of capabilities: published, listed, deprecated, negotiated.

Reference: features.md (Capability versions).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.capabilities.semver import (
    COMPARATORS_MAX,
    RANGE_CHARS_MAX,
    VERSION_CHARS_MAX,
    VERSION_PATTERN,
    is_version,
    parse_range,
)
from core.records.api.kinds import CapabilityId, Did, Hash, LongText, Timestamp, Yes, words
from core.records.api.record import Page, Record
from core.records.api.shape import Body, Json, Kind, Maybe, Mismatch, Schema, checked
from core.wording import got_of

# Of one schema in its canonical form, and how deep it may be.
SCHEMA_BYTES_MAX: Final = 32 * 1024
SCHEMA_LEVELS_MAX: Final = 32
SUPPORTED_MAX: Final = 100
VERSION_STATUSES: Final = ("active", "deprecated")


def _range(value: Any) -> str:
    try:
        parse_range(value if isinstance(value, str) else "")
    except ValueError as error:
        raise Mismatch(got_of(value), str(error).partition("expected ")[2]) from None
    return str(value)


def _supported(value: Any) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= SUPPORTED_MAX:
        got = f"{len(value)} items" if isinstance(value, list) else got_of(value)
        raise Mismatch(got, f"1 to {SUPPORTED_MAX} versions or ranges")
    return [_range(one) for one in value]


_VERSION_SCHEMA: Final[Schema] = {
    "type": "string",
    "pattern": VERSION_PATTERN,
    "maxLength": VERSION_CHARS_MAX,
}
_RANGE_SCHEMA: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": RANGE_CHARS_MAX,
    "description": f"A version, or up to {COMPARATORS_MAX} comparators such as `>=1.2 <2`.",
}
_EXPECTED: Final = "a semantic version such as 1.4.0, without build metadata"
SemanticVersion = Annotated[str, checked(_VERSION_SCHEMA, is_version, _EXPECTED)]
VersionRange = Annotated[str, Kind(_RANGE_SCHEMA, _range)]


class VersionPublication(Body, is_closed=True):
    """A version of a capability: its schemas, and what changed."""

    capability_id: CapabilityId
    version: Annotated[SemanticVersion, "Semantic version."]
    input_schema: Annotated[
        dict[str, Any], "JSON Schema 2020-12 of the inputs; `$ref` only within the schema."
    ]
    output_schema: Annotated[
        dict[str, Any], "JSON Schema 2020-12 of the result; `$ref` only within the schema."
    ]
    changelog: LongText = ""
    deprecates_version: Annotated[
        Maybe[SemanticVersion], "Version that this one replaces; it becomes deprecated."
    ] = None
    owner_did: Annotated[
        Maybe[Did],
        "Owner of the versions. Default: the caller; only administrators may name another.",
    ] = None


class VersionDeprecation(Body, is_closed=True):
    """Options of a deprecation."""

    successor: Annotated[Maybe[SemanticVersion], "Active version to use instead."] = None


class Negotiation(Body, is_closed=True):
    """The versions that a caller supports."""

    capability_id: CapabilityId
    supported_versions: Annotated[
        list[str],
        Kind(
            {"type": "array", "items": _RANGE_SCHEMA, "minItems": 1, "maxItems": SUPPORTED_MAX},
            _supported,
        ),
        "Versions or ranges that the caller supports.",
    ]
    preferred_version: Annotated[
        Maybe[VersionRange], "Version that is chosen when it is supported and exists."
    ] = None


class SchemaBreak(Record):
    """A rule of one version that does not hold in the other."""

    path: Annotated[str, "The member, such as `inputSchema.text`."]
    affected: Annotated[str, "Who is affected: callers or agents."]
    was: Annotated[str, "The rule in the earlier version."]
    now: Annotated[str, "The rule in the later version."]
    is_decided: Annotated[bool, "false: compatibility could not be shown."]


class Compatibility(Record):
    """Incompatible changes between two versions."""

    from_version: Annotated[str, "The earlier version."]
    to_version: Annotated[str, "The later version."]
    is_compatible: Annotated[bool, "Whether there is no incompatible change."]
    breaks: Annotated[list[SchemaBreak], "Incompatible changes, at most 20."]


class CapabilityVersion(Record):
    """A published version of a capability."""

    version_id: str
    capability_id: str
    version: Annotated[str, "Semantic version."]
    status: Annotated[str, words(VERSION_STATUSES)]
    schema_hash: Hash
    changelog: str
    published_by_did: Annotated[Did, "DID of the caller who published it."]
    published_at: Annotated[Timestamp, "Time of the publication."]
    successor: Annotated[str | None, "Version to use instead; null without one."]
    deprecated_at: Timestamp | None
    sunset_at: Annotated[
        Timestamp | None,
        "Time after which it may be withdrawn, 12 months after the deprecation; null when active.",
    ]


class CapabilityVersionWhole(CapabilityVersion):
    """A version of a capability with its schemas."""

    input_schema: Annotated[Json, "JSON Schema of the inputs."]
    output_schema: Annotated[Json, "JSON Schema of the result."]
    compatibility: Annotated[
        Compatibility | None, "Changes against the previous version; null for the first."
    ]


class VersionPublished(CapabilityVersion):
    """A version that was published."""

    success: Yes
    id: Annotated[str, "Id of the version."]
    owner_did: Annotated[Did, "Owner of the capability's versions."]
    deprecates_version: Annotated[str | None, "Version that this one deprecated; null without one."]
    compatibility: Annotated[
        Compatibility | None, "Changes against the previous version; null for the first."
    ]


class VersionDeprecated(Record):
    """A version that was deprecated."""

    success: Yes
    id: Annotated[str, "Id of the version."]
    version_id: str
    capability_id: str
    version: Annotated[str, "Semantic version."]
    status: Annotated[str, Kind({"const": "deprecated"})]
    successor: Annotated[str | None, "Version to use instead; null without one."]
    deprecated_at: Timestamp
    sunset_at: Timestamp


class CapabilityVersionPage(Page[CapabilityVersion]):
    """A page of a capability's versions, newest first."""

    plural = "versions"
    row = CapabilityVersion

    latest: Annotated[str, "The newest active version."]


class MigrationStep(Compatibility):
    """One step from a version to the next."""

    changelog: str


class Negotiated(Record):
    """The version that the caller should use."""

    capability_id: str
    version_id: str
    version: Annotated[str, "Semantic version."]
    status: Annotated[str, words(VERSION_STATUSES)]
    schema_hash: Hash
    sunset_at: Timestamp | None
    latest: Annotated[str, "The newest active version."]
    migration_path: Annotated[
        list[MigrationStep], "Steps from this version to the latest; empty when it is the latest."
    ]
