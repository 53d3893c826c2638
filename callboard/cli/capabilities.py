"""`capability`: versions of capabilities. Spec: Capability version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from callboard.cli.session import EXIT_USAGE, Session, stop, verb
from core.wording import kind_of

app = typer.Typer(help="Publish and compare capability versions.", no_args_is_help=True)

_Capability = Annotated[str, typer.Argument(help="The capability's ID.", metavar="CAPABILITY")]
_Version = Annotated[str, typer.Argument(help="Version, such as 1.4.0.", metavar="VERSION")]


@verb(app, "publish")
def publish(
    session: Session,
    capability: _Capability,
    version: _Version,
    input_schema: Annotated[Path, typer.Option(help="File with the JSON Schema of the inputs.")],
    output_schema: Annotated[Path, typer.Option(help="File with the JSON Schema of the result.")],
    changelog: Annotated[str, typer.Option(help="Description of the changes.")] = "",
    deprecates: Annotated[str | None, typer.Option(help="Version that this one replaces.")] = None,
    owner: Annotated[str | None, typer.Option(help="Owner DID; administrators only.")] = None,
) -> None:
    """Publish a version of a capability that one of your agents offers."""
    reply = session.client.publish_version(
        capability,
        version,
        input_schema=_schema_in(input_schema),
        output_schema=_schema_in(output_schema),
        changelog=changelog,
        deprecates_version=deprecates,
        owner_did=owner,
    )
    session.show_record(reply)


@verb(app, "list")
def list_versions(session: Session, capability: _Capability) -> None:
    """List the versions of a capability, newest first."""
    reply = session.client.versions_of(capability, limit=100)
    columns = ("version", "status", "publishedAt", "sunsetAt", "changelog")
    session.show_table(reply, reply["versions"], columns)


@verb(app, "show")
def show(session: Session, capability: _Capability, version: _Version) -> None:
    """Show a version, its schemas and its breaking changes."""
    session.show_record(session.client.version(capability, version))


@verb(app, "deprecate")
def deprecate(
    session: Session,
    capability: _Capability,
    version: _Version,
    successor: Annotated[str | None, typer.Option(help="Version to use instead.")] = None,
) -> None:
    """Deprecate a version permanently; it is removed after 12 months."""
    session.show_record(session.client.deprecate_version(capability, version, successor=successor))


@verb(app, "negotiate")
def negotiate(
    session: Session,
    capability: _Capability,
    supported: Annotated[
        list[str], typer.Argument(help="Supported versions or ranges.", metavar="SUPPORTED...")
    ],
    preferred: Annotated[str | None, typer.Option(help="Preferred version.")] = None,
) -> None:
    """Show the version to use and the upgrade path to the latest one."""
    session.show_record(
        session.client.negotiate_version(capability, supported, preferred=preferred)
    )


def _schema_in(file: Path) -> dict[str, Any]:
    try:
        schema = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        stop(EXIT_USAGE, f"cannot read a JSON Schema from {file}: {error}")
    if not isinstance(schema, dict):
        stop(EXIT_USAGE, f"{file} holds {kind_of(schema)}, expected a JSON Schema")
    return schema
