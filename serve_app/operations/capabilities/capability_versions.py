"""Versions of capabilities: publish, list, read, deprecate and negotiate them.

All versions of a capability are its line of versions, which has one owner. Only the owner publishes
versions.
Reference: features.md (Capability versions), http.md (Versions). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from email.utils import formatdate
from functools import partial
from itertools import pairwise
from typing import Any, Final

from core.canonical import canonical, hash_bytes
from core.capabilities.schema_breaks import Break, find_breaks
from core.capabilities.semver import Version, parse_range, parse_version, version_id
from core.capabilities.version_choice import (
    PublishedVersion,
    by_preference,
    find_latest,
    find_upgrade_path,
    find_within,
    negotiate,
)
from core.errors import ErrorCode, Problem, ProblemList, ServiceError
from core.json_bounds import is_deeper_than
from core.json_text import Raw, read_json
from core.records.api.agents import (
    SCHEMA_BYTES_MAX,
    SCHEMA_LEVELS_MAX,
    CapabilityVersion,
    CapabilityVersionPage,
    CapabilityVersionWhole,
    Negotiated,
    Negotiation,
    SchemaBreak,
    VersionDeprecated,
    VersionDeprecation,
    VersionPublication,
    VersionPublished,
)
from core.records.api.record import PageQuery
from core.records.api.shape import refused
from core.schemas.value_schema import DIALECT, schema_defect
from core.timestamps import iso_ms
from core.trust.identity.name_terms import add_months
from ledger.features.capability_versions import (
    DeprecateVersion,
    FirstOffer,
    PublishVersion,
    changelogs,
    first_offer,
    line_owner,
    published,
    version_rows,
    whole_version_rows,
)
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, Reply, invalid, not_found
from serve_app.http.lists import listed, page_of
from serve_app.http.worker_thread import in_thread
from serve_app.operations.views import shown

OPERATIONS = Operations("capabilities")

VERSIONS_PER_OWNER_MAX: Final = 1_000
VERSIONS_PER_CAPABILITY_MAX: Final = 100
# The assumed size of a comparison of two versions, for `in_thread`. Comparing short schemas may
# also take long, so comparisons always run in the thread.
COMPARED_BYTES: Final = 2 * SCHEMA_BYTES_MAX

_VERSIONS: Final = "/v1/capabilities/{capability_id}/versions"


@OPERATIONS.add(
    "POST",
    "/v1/capabilities/versions",
    body=VersionPublication,
    reply=VersionPublished,
    errors=(ErrorCode.NOT_FOUND,),
)
async def publish(call: Call) -> Json:
    """Publish a version of a capability.

    1. Check whether the caller may publish. The ledger repeats this check in step 4.
    2. Check the schemas.
    3. Check that the schemas keep the compatibility that the version number promises.
    4. Commit the version.
    """
    body, services = call.given(VersionPublication), call.services
    rows = await version_rows(services.reader, (body.capability_id,))
    owner_did = await line_owner(services.reader, body.capability_id) if rows else None
    if body.owner_did is not None:  # 1
        call.require(call.right, body.owner_did)
    offer = None
    if owner_did is None or not call.may((owner_did,)):
        offer = await _offer_to_lead_with(call, body, owner_did)
    versions = published(rows)
    before, after = _neighbours(parse_version(body.version), versions)
    ids = [version_id(body.capability_id, str(one)) for one in (before, after) if one is not None]
    known = await whole_version_rows(services.reader, ids)
    size = COMPARED_BYTES + len(call.body)
    schemas, broken = await in_thread(  # 2, 3
        call.account, size, partial(_judged, body, before, after, known)
    )
    command = PublishVersion(
        owner_did=body.owner_did,
        agent_did=None if offer is None else offer.did,
        agent_revision=0 if offer is None else offer.revision,
        capability_id=body.capability_id,
        version=body.version,
        input_schema=schemas[0].decode(),
        output_schema=schemas[1].decode(),
        schema_hash=_schema_hash(*schemas),
        changelog=body.changelog,
        deprecates=body.deprecates_version,
        versions_expected=len(rows),
        owner_versions_max=VERSIONS_PER_OWNER_MAX,
        line_versions_max=VERSIONS_PER_CAPABILITY_MAX,
        needs_proof=services.settings.needs_proof,
        takes_over=offer is not None and owner_did is not None,
    )
    outcome = await call.commit(command, until_known=True)  # 4
    own_id = version_id(body.capability_id, body.version)
    return {
        "success": True,
        "id": own_id,
        **_shown((await whole_version_rows(services.reader, (own_id,)))[own_id]),
        "ownerDid": outcome.result["ownerDid"],
        "deprecatesVersion": body.deprecates_version,
        "compatibility": broken,
    }


async def _offer_to_lead_with(
    call: Call, body: VersionPublication, line_owner_did: str | None
) -> FirstOffer | None:
    """Return the agent that entitles its owner to begin a line of versions or to take it over.

    Args:
        call: the publish.
        body: its body.
        line_owner_did: the current owner of the line, who is not the caller; None: the capability
            has no line yet.

    Returns:
        None if the capability has no line and the publishing owner has no such agent. The ledger
        then refuses and says what to do.

    Raises:
        ServiceError: FORBIDDEN: another owner has the line of versions, or another owner's agent
            takes precedence.
    """
    owner_did = body.owner_did or call.caller.did
    services = call.services
    offer = await first_offer(
        services.reader,
        owner_did,
        body.capability_id,
        needs_proof=services.settings.needs_proof,
        at_ms=services.now_ms(),
    )
    if line_owner_did is not None:
        if offer is None or offer.is_preceded or not offer.is_proven:
            call.require(call.right, line_owner_did)  # Raises FORBIDDEN.
        return offer
    if offer is not None and offer.is_preceded and not call.caller.is_admin:
        raise ServiceError(
            ErrorCode.FORBIDDEN,
            f"{owner_did} may not publish the first version of {body.capability_id}: another"
            " owner's agent comes first: its DID is proven, or it has offered it longer."
            " Only that owner or an administrator may",
        )
    return offer


@OPERATIONS.add(
    "GET", _VERSIONS, query=PageQuery, reply=CapabilityVersionPage, errors=(ErrorCode.NOT_FOUND,)
)
async def list_versions(call: Call) -> Json:
    """List the versions of a capability, the newest first."""
    capability_id = call.path_values["capability_id"]
    page = page_of(call, call.given(PageQuery))
    rows = await _line(call, capability_id)
    latest = find_latest(published(rows))
    assert latest is not None, capability_id
    rows.sort(key=lambda row: parse_version(row["version"]), reverse=True)
    if page.after is not None:
        try:
            after = parse_version(page.after)
        except ValueError:
            expected = "the nextCursor of a page of this list"
            raise invalid("cursor", page.after, expected) from None
        rows = [row for row in rows if parse_version(row["version"]) < after]
    rows = rows[page.offset : page.offset + page.limit + 1]
    texts = await changelogs(call.services.reader, [row["id"] for row in rows])
    records = [_shown({**row, "changelog": texts[row["id"]]}) for row in rows]
    found = listed("versions", records, page, lambda record: record["version"])
    return {**found, "latest": str(latest.version)}


@OPERATIONS.add("GET", f"{_VERSIONS}/{{version}}", reply=CapabilityVersionWhole)
async def get_version(call: Call) -> Reply:
    """Read a version of a capability with its schemas."""
    capability_id, version = call.path_values["capability_id"], call.path_values["version"]
    own_id, asked = version_id(capability_id, version), parse_version(version)
    line = [parse_version(row["version"]) for row in await _line(call, capability_id)]
    if asked not in line:
        raise not_found(f"the version {own_id}")
    services = call.services
    before = max((one for one in line if one < asked), default=None)
    ids = [version_id(capability_id, str(one)) for one in (before, asked) if one is not None]
    rows = await whole_version_rows(services.reader, ids)
    broken, row = await _comparisons(call, rows, ids), rows[own_id]
    whole = {
        **_shown(row),
        "inputSchema": Raw(row["input_schema"]),
        "outputSchema": Raw(row["output_schema"]),
        "compatibility": broken[0] if broken else None,
    }
    return Reply(whole, headers=deprecation_headers(row))


@OPERATIONS.add(
    "POST",
    f"{_VERSIONS}/{{version}}/deprecate",
    body=VersionDeprecation,
    is_body_optional=True,
    reply=VersionDeprecated,
)
async def deprecate(call: Call) -> Json:
    """Deprecate a version of a capability."""
    capability_id, version = call.path_values["capability_id"], call.path_values["version"]
    successor = call.given(VersionDeprecation).successor
    command = DeprecateVersion(capability_id=capability_id, version=version, successor=successor)
    await call.commit(command, until_known=True)
    own_id = version_id(capability_id, version)
    row = (await whole_version_rows(call.services.reader, (own_id,)))[own_id]
    others = {"version_id": own_id, "sunset_at": _sunset_at(row)}
    return shown(VersionDeprecated, row, success=True, **others)


@OPERATIONS.add(
    "POST",
    "/v1/capabilities/negotiate",
    scope="capabilities:read",
    rate=RateClass.READ,
    body=Negotiation,
    reply=Negotiated,
    errors=(ErrorCode.NOT_FOUND,),
)
async def negotiate_version(call: Call) -> Reply:
    """Select the version of a capability that a caller should use."""
    body = call.given(Negotiation)
    rows = {row["version"]: row for row in await _line(call, body.capability_id)}
    versions = published(rows.values())
    preferred = None if body.preferred_version is None else parse_range(body.preferred_version)
    supported = [parse_range(text) for text in body.supported_versions]
    chosen, latest = negotiate(versions, supported, preferred), find_latest(versions)
    assert latest is not None, body.capability_id
    if chosen is None:
        raise _not_acceptable(body, versions)
    row = rows[str(chosen.version)]
    others = {
        "version_id": row["id"],
        "sunset_at": _sunset_at(row),
        "latest": str(latest.version),
        "migration_path": await _migration_path(call, body.capability_id, versions, chosen),
    }
    return Reply(shown(Negotiated, row, **others), headers=deprecation_headers(row))


async def _migration_path(
    call: Call, capability_id: str, versions: list[PublishedVersion], start: PublishedVersion
) -> list[dict[str, Any]]:
    way = [start, *find_upgrade_path(versions, start)]
    if len(way) == 1:
        return []
    ids = [version_id(capability_id, str(one.version)) for one in way]
    reader = call.services.reader
    texts = await changelogs(reader, ids[1:])
    steps = await _comparisons(call, await whole_version_rows(reader, ids), ids)
    return [{**step, "changelog": texts[later]} for step, later in zip(steps, ids[1:], strict=True)]


async def _comparisons(
    call: Call, rows: dict[str, RowDict], ids: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the comparison of each version with the previous version in `ids`."""
    return [
        await in_thread(call.account, COMPARED_BYTES, partial(_compared, rows[former], rows[later]))
        for former, later in pairwise(ids)
    ]


def _compared(former: RowDict, later: RowDict) -> dict[str, Any]:
    breaks = find_breaks(*_schemas_of(former), *_schemas_of(later))
    return _compatibility(former["version"], later["version"], breaks)


def _schemas_of(row: RowDict) -> tuple[Any, Any]:
    """Return the parsed input schema and output schema of a version's row."""
    return read_json(row["input_schema"]), read_json(row["output_schema"])


def _compatibility(former: str, later: str, breaks: Sequence[Break]) -> dict[str, Any]:
    """Return the JSON record of a comparison of two versions."""
    return {
        "fromVersion": former,
        "toVersion": later,
        "isCompatible": not breaks,
        "breaks": [shown(SchemaBreak, asdict(one)) for one in breaks],
    }


def _not_acceptable(body: Negotiation, versions: list[PublishedVersion]) -> ServiceError:
    newest = sorted((one.version for one in versions), reverse=True)[:10]
    shown_ones = ", ".join(map(str, newest)) + (", …" if len(versions) > 10 else "")
    got = ", ".join(body.supported_versions)[:200]
    return ServiceError(
        ErrorCode.NOT_ACCEPTABLE,
        f"{body.capability_id} has no version among supportedVersions: published are {shown_ones}",
        (Problem("supportedVersions", got, f"one of {shown_ones}"),),
    )


async def _line(call: Call, capability_id: str) -> list[RowDict]:
    """Return the rows of all versions of a capability.

    Raises:
        ServiceError: NOT_FOUND: the capability has no versions.
    """
    rows = await version_rows(call.services.reader, (capability_id,))
    if not rows:
        raise not_found(f"a version of {capability_id}")
    return rows


def _neighbours(
    version: Version, versions: Sequence[PublishedVersion]
) -> tuple[Version | None, Version | None]:
    """Return the versions before and after a new version; None where no version exists.

    The later version is None too if its number permits changes that break the new version.
    """
    others = [one.version for one in versions]
    before = max((one for one in others if one < version), default=None)
    after = min((one for one in others if one > version), default=None)
    return before, after if after is not None and after.promise == version.promise else None


def _judged(
    body: VersionPublication,
    before: Version | None,
    after: Version | None,
    known: dict[str, RowDict],
) -> tuple[tuple[bytes, bytes], dict[str, Any] | None]:
    """Check the schemas of a new version.

    Args:
        body: the publication.
        before: the previous version; None without one.
        after: the next version that must stay compatible; None without one.
        known: the rows of both versions, by their ids.

    Returns:
        Both schemas in their canonical form, and the comparison with the previous version.

    Raises:
        ServiceError: INVALID_REQUEST: a schema is not valid, or the schemas break the compatibility
            that the version number promises.
    """
    texts = (
        _canonical_schema("inputSchema", body.input_schema),
        _canonical_schema("outputSchema", body.output_schema),
    )
    problems, broken = ProblemList(), None
    version, mine = parse_version(body.version), (body.input_schema, body.output_schema)
    if before is not None:
        theirs = _schemas_of(known[version_id(body.capability_id, str(before))])
        breaks = find_breaks(*theirs, *mine)
        broken = _compatibility(str(before), body.version, breaks)
        if before.promise == version.promise:
            problems.extend(
                Problem(
                    one.path,
                    one.now,
                    f"{one.was}, as in {before}, or a version number that allows breaking"
                    f" {one.affected}",
                )
                for one in breaks
                if one.is_decided
            )
    if after is not None:
        theirs = _schemas_of(known[version_id(body.capability_id, str(after))])
        problems.extend(
            Problem(
                one.path,
                one.was,
                f"{one.now}, as in {after}, whose version number allows no breaking change",
            )
            for one in find_breaks(*mine, *theirs)
            if one.is_decided
        )
    if problems:
        raise refused(problems)
    return texts, broken


def _canonical_schema(name: str, schema: dict[str, Any]) -> bytes:
    """Return the canonical form of a schema.

    Raises:
        ServiceError: INVALID_REQUEST: the schema is too deep or too large, has another dialect, or
            is not valid.
    """
    if is_deeper_than(schema, SCHEMA_LEVELS_MAX):
        raise invalid(name, "more levels", f"at most {SCHEMA_LEVELS_MAX} levels")
    try:
        text = canonical(schema)
    except ValueError as error:
        raise invalid(name, str(error)[:200], "canonical JSON") from None
    if len(text) > SCHEMA_BYTES_MAX:
        raise invalid(name, f"{len(text)} bytes", f"at most {SCHEMA_BYTES_MAX} bytes")
    dialect = schema.get("$schema", DIALECT)
    if not isinstance(dialect, str) or dialect.removesuffix("#") != DIALECT:
        raise invalid(f"{name}.$schema", str(dialect)[:100], DIALECT)
    defect = schema_defect(text)
    if defect is not None:
        problem = defect.as_problem(name)
        raise invalid(problem.path, problem.got, problem.expected)
    return text


def _schema_hash(input_schema: bytes, output_schema: bytes) -> str:
    """Return the hash of the canonical JSON object `{inputSchema, outputSchema}`."""
    return hash_bytes(b'{"inputSchema":%b,"outputSchema":%b}' % (input_schema, output_schema))


def _shown(row: RowDict) -> dict[str, Any]:
    return shown(CapabilityVersion, row, version_id=row["id"], sunset_at=_sunset_at(row))


def _sunset_at(row: RowDict) -> str | None:
    deprecated_ms = row["deprecated_ms"]
    return None if deprecated_ms is None else iso_ms(sunset_ms(deprecated_ms))


Headers = tuple[tuple[bytes, bytes], ...]

# A deprecated version is served for at least so many months after its deprecation.
SUNSET_MONTHS: Final = 12
# The largest number of distinct version ranges of a manifest that are checked for deprecation.
WARNED_MAX: Final = 16


def sunset_ms(deprecated_ms: int) -> int:
    """Return the earliest end of service of a deprecated version, Unix milliseconds."""
    return add_months(deprecated_ms, SUNSET_MONTHS)


def deprecation_headers(row: RowDict) -> Headers:
    """Return the `Deprecation`, `Sunset` and `Link` headers of a deprecated version, else none."""
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
    """Return the deprecation headers of a publish whose nodes would get deprecated versions.

    The preferred version in a node's range is checked. It is deprecated only if all versions in the
    range are deprecated. If the versions of several nodes are deprecated, the headers are those of
    the version that was deprecated first. A manifest without "@" is not searched. A failed read
    gives no headers, because the publish may be committed already.
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
    """Return (capability id, version range) of each node that names versions."""
    for node in nodes.values() if isinstance(nodes, Mapping) else nodes:
        text = str(node.get("capabilityId") or node.get("capability"))
        capability_id, sign, versions = text.partition("@")
        if sign:
            yield capability_id, versions


def _meant(capability_id: str, versions: str, rows: list[RowDict]) -> RowDict | None:
    """Return the row of the preferred published version in a range; None if the range has none."""
    line = {row["version"]: row for row in rows if row["capability_id"] == capability_id}
    found = find_within(by_preference(published(line.values())), parse_range(versions))
    return line[str(found[0].version)] if found else None
