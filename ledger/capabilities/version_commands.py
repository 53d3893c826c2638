"""Commands about versions of capabilities.

Plain values, as `ledger/commands.py` says. Reference: features.md (Capability versions).
"""

from __future__ import annotations

from ledger.authority import OwnersCommand


class PublishVersion(OwnersCommand, frozen=True, kw_only=True):
    """Add a version to a capability's line of versions, or begin the line.

    `owner_did`: whose line it is or becomes; an administrator assigns a line to another.
    `agent_did`, `agent_revision`: an agent of that owner that offers the capability, and its
    stored card by which that was seen; needed to begin a line, except for an administrator.
    `takes_over`: that agent is the oldest proven one, so that its owner gets another's line too,
    unless an administrator has assigned it.
    `needs_proof`: its claim must be proven (the setting `claims`).
    `schema_hash`: of both schemas, `sha256:…`. `deprecates`: a version that this one succeeds.
    `versions_expected`: how many there were when it was compared with them. `owner_versions_max`,
    `line_versions_max`: versions of one owner and of one capability, at most.
    Rejections: FORBIDDEN; NOT_FOUND (what it deprecates); CONFLICT (published already, too many,
    deprecated already; not stored: something has changed meanwhile).
    Result: {"ownerDid"}.
    """

    owner_did: str | None = None
    agent_did: str | None = None
    agent_revision: int = 0
    capability_id: str
    version: str
    input_schema: str
    output_schema: str
    schema_hash: str
    changelog: str
    deprecates: str | None = None
    versions_expected: int
    owner_versions_max: int
    line_versions_max: int
    needs_proof: bool = False
    takes_over: bool = False


class DeprecateVersion(OwnersCommand, frozen=True, kw_only=True):
    """Deprecate a version, for good; its line's owner's act.

    `successor`: an active version of the capability to be used instead, None for none.
    Rejections: NOT_FOUND, FORBIDDEN, CONFLICT (deprecated already, or the successor is no active
    version). No result.
    """

    capability_id: str
    version: str
    successor: str | None = None
