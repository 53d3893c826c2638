"""Requests about versions of capabilities, as data like those of `calls.py`.

Reference: features.md (Capability versions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callboard.calls import sending


@sending("POST", "/v1/capabilities/versions")
def publish_version(
    capability_id: str,
    version: str,
    *,
    input_schema: Mapping[str, Any],
    output_schema: Mapping[str, Any],
    changelog: str = "",
    deprecates_version: str | None = None,
    owner_did: str | None = None,
) -> None:
    """Publish a version of a capability. Reference: features.md (Capability versions).

    Args:
        version: a semantic version, for example `1.4.0`.
        input_schema: JSON Schema 2020-12, without references to others; so is `output_schema`.
        changelog: what has changed.
        deprecates_version: which version this one succeeds.
        owner_did: whose versions these are; only administrators name another than the caller.
    """


@sending("GET", "/v1/capabilities/{capability_id}/versions/{version}")
def version(capability_id: str, version: str) -> None:
    """Read a version of a capability with its schemas."""


@sending("POST", "/v1/capabilities/{capability_id}/versions/{version}/deprecate")
def deprecate_version(capability_id: str, version: str, *, successor: str | None = None) -> None:
    """Deprecate a version of a capability, for good.

    Args:
        successor: an active version to be used instead.
    """


@sending(
    "POST",
    "/v1/capabilities/negotiate",
    supported="supportedVersions",
    preferred="preferredVersion",
)
def negotiate_version(
    capability_id: str, supported: Sequence[str], *, preferred: str | None = None
) -> None:
    """Ask which version of a capability to use, and for the way from it to the latest.

    Args:
        supported: versions, or ranges such as `>=1.2 <2`.
        preferred: chosen if it is among them.
    """
