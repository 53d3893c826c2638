"""How a reply warns of a deprecated version: `Deprecation` (RFC 9745), `Sunset` (RFC 8594) and a
link to the version that succeeds it.

Reference: http.md (Versions). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final

from core.capabilities.choosing_versions import by_preference, find_within
from core.capabilities.semver import parse_range
from core.errors import ServiceError
from core.trust.identity.name_terms import add_months
from ledger.capabilities.version_reads import published, version_rows
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call

Headers = tuple[tuple[bytes, bytes], ...]

# From its deprecation on a version is served for so long at least.
SUNSET_MONTHS: Final = 12
# Different ranges of a manifest that are looked at for its warning.
WARNED_MAX: Final = 16


def sunset_ms(deprecated_ms: int) -> int:
    """Return until when a deprecated version is served at least, Unix milliseconds."""
    return add_months(deprecated_ms, SUNSET_MONTHS)


def deprecation_headers(row: RowDict) -> Headers:
    """Return the headers of a reply about a version; none where it is not deprecated."""
    deprecated_ms = row["deprecated_ms"]
    if deprecated_ms is None:
        return ()
    sunset = formatdate(sunset_ms(deprecated_ms) // 1_000, usegmt=True)
    found = [
        (b"deprecation", b"@%d" % (deprecated_ms // 1_000)),
        (b"sunset", sunset.encode("ascii")),
    ]
    if row["successor"] is not None:
        path = f"/v1/capabilities/{row['capability_id']}/versions/{row['successor']}"
        found.append((b"link", f'<{path}>; rel="successor-version"'.encode("ascii")))
    return tuple(found)


async def manifest_warnings(call: Call) -> Headers:
    """Return the headers of a publish whose nodes ask for versions that are all deprecated: those
    of the one that ends first.

    A manifest without "@" costs nothing. The publish is done, so what cannot be read is left out.
    """
    if b"@" not in call.body:
        return ()
    asked = list(dict.fromkeys(_ranges(call.json["nodes"])))[:WARNED_MAX]
    if not asked:
        return ()
    rows: list[RowDict] = []
    with suppress(ServiceError):
        capability_ids = dict.fromkeys(capability_id for capability_id, _ in asked)
        rows = await version_rows(call.services.reader, capability_ids)
    deprecated = [
        row
        for capability_id, versions in asked
        if (row := _meant(capability_id, versions, rows)) is not None
        and row["deprecated_ms"] is not None
    ]
    soonest = min(deprecated, key=lambda row: int(row["deprecated_ms"]), default=None)
    return () if soonest is None else deprecation_headers(soonest)


def _ranges(nodes: Mapping[str, Any] | list[Any]) -> Iterable[tuple[str, str]]:
    """Return the capabilities of a checked manifest that name versions, each with them."""
    for node in nodes.values() if isinstance(nodes, Mapping) else nodes:
        text = str(node.get("capabilityId") or node.get("capability"))
        capability_id, sign, versions = text.partition("@")
        if sign:
            yield capability_id, versions


def _meant(capability_id: str, versions: str, rows: list[RowDict]) -> RowDict | None:
    """Return the published version that a range means, None for none."""
    line = {row["version"]: row for row in rows if row["capability_id"] == capability_id}
    found = find_within(by_preference(published(line.values())), parse_range(versions))
    return line[str(found[0].version)] if found else None
