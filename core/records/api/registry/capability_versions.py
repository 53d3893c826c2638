"""Versions of capabilities: published, listed, deprecated, negotiated.

Spec: Capability version, /v1/capabilities/versions; contract.md section 6 (Capability versions).
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
from core.records.api.path_values import CapabilityPath
from core.records.api.record import Page, Record
from core.records.api.shape import Body, Json, Kind, Maybe, Mismatch, Schema, Schemas
from core.wording import got_of

# Of one schema in its canonical form, and how deep it may be.
SCHEMA_BYTES_MAX: Final = 32 * 1024
SCHEMA_LEVELS_MAX: Final = 32
SUPPORTED_MAX: Final = 100
VERSION_STATUSES: Final = ("active", "deprecated")


def _version(value: Any) -> str:
    if not is_version(value):
        raise Mismatch(got_of(value), "a semantic version such as 1.4.0, without build metadata")
    return str(value)


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
    "description": f"a version, or at most {COMPARATORS_MAX} comparators such as >=1.2 <2",
}
SemanticVersion = Annotated[str, Kind(_VERSION_SCHEMA, _version)]
VersionRange = Annotated[str, Kind(_RANGE_SCHEMA, _range)]


class VersionPublication(Body, is_closed=True):
    """A version of a capability: what it takes and gives, and what has changed."""

    capability_id: CapabilityId
    version: SemanticVersion
    input_schema: Annotated[dict[str, Any], "JSON Schema 2020-12, `$ref` only within it"]
    output_schema: Annotated[dict[str, Any], "JSON Schema 2020-12, `$ref` only within it"]
    changelog: LongText = ""
    deprecates_version: Annotated[Maybe[SemanticVersion], "which this one succeeds"] = None
    owner_did: Annotated[Maybe[Did], "the caller; only administrators name another"] = None


class VersionDeprecation(Body, is_closed=True):
    """Which version to use instead of a deprecated one."""

    successor: Annotated[Maybe[SemanticVersion], "an active version of the capability"] = None


class Negotiation(Body, is_closed=True):
    """What a caller can work with."""

    capability_id: CapabilityId
    supported_versions: Annotated[
        list[str],
        Kind(
            {"type": "array", "items": _RANGE_SCHEMA, "minItems": 1, "maxItems": SUPPORTED_MAX},
            _supported,
        ),
    ]
    preferred_version: Annotated[Maybe[VersionRange], "chosen if it is among them"] = None


class CapabilityVersionPath(CapabilityPath):
    """A version of a capability."""

    version: Annotated[SemanticVersion, "the version"]


class SchemaBreak(Record):
    """A rule of a version that does not hold in another."""

    path: Annotated[str, "the member, such as inputSchema.text"]
    affected: Annotated[str, "whom it concerns"]
    was: Annotated[str, "of the earlier version"]
    now: Annotated[str, "of the later version"]
    is_decided: Annotated[bool, "false: it could not be shown that nothing breaks"]


class Compatibility(Record):
    """What a version breaks of an earlier one."""

    from_version: str
    to_version: str
    is_compatible: bool
    breaks: Annotated[list[SchemaBreak], "at most 20"]


class CapabilityVersion(Record):
    """A published version of a capability."""

    version_id: str
    capability_id: str
    version: str
    status: Annotated[str, words(VERSION_STATUSES)]
    schema_hash: Hash
    changelog: str
    published_by_did: Did
    published_at: Timestamp
    successor: Annotated[str | None, "which version to use instead"]
    deprecated_at: Timestamp | None
    sunset_at: Annotated[Timestamp | None, "12 months after it was deprecated"]


class CapabilityVersionWhole(CapabilityVersion):
    """A version of a capability with its schemas."""

    input_schema: Json
    output_schema: Json
    compatibility: Annotated[Compatibility | None, "with the version before; null: it is the first"]


class VersionPublished(CapabilityVersion):
    """A version that was published."""

    success: Yes
    id: str
    owner_did: Annotated[Did, "whose versions of the capability these are"]
    deprecates_version: str | None
    compatibility: Annotated[Compatibility | None, "with the version before; null: it is the first"]


class VersionDeprecated(Record):
    """A version that was deprecated."""

    success: Yes
    id: str
    version_id: str
    capability_id: str
    version: str
    status: Annotated[str, Kind({"const": "deprecated"})]
    successor: str | None
    deprecated_at: Timestamp
    sunset_at: Timestamp


class CapabilityVersionPage(Page[CapabilityVersion]):
    """A page of a capability's versions, the newest first, and its `latest` active one."""

    plural = "versions"
    row = CapabilityVersion

    latest: str

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a page, with what it says of all versions."""
        page = super().described_schema(schemas)
        page["properties"]["latest"] = {"type": "string"}
        page["required"].append("latest")
        return page


class MigrationStep(Compatibility):
    """From one version to a later one: what has changed, and what that breaks."""

    changelog: str


class Negotiated(Record):
    """The version that a caller should use."""

    capability_id: str
    version_id: str
    version: str
    status: Annotated[str, words(VERSION_STATUSES)]
    schema_hash: Hash
    sunset_at: Timestamp | None
    latest: str
    migration_path: Annotated[list[MigrationStep], "from it to the latest; empty: it is"]
