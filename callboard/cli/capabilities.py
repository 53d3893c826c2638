"""`capability`: versions of capabilities. Spec: Capability version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from callboard.cli.session import EXIT_USAGE, Session, stop, verb
from core.wording import kind_of

app = typer.Typer(help="Versions of capabilities.", no_args_is_help=True)

_Capability = Annotated[str, typer.Argument(help="The capability's id.", metavar="CAPABILITY")]
_Version = Annotated[str, typer.Argument(help="A version such as 1.4.0.", metavar="VERSION")]


@verb(app, "publish")
def publish(
    session: Session,
    capability: _Capability,
    version: _Version,
    input_schema: Annotated[Path, typer.Option(help="A file with the inputs' JSON Schema.")],
    output_schema: Annotated[Path, typer.Option(help="A file with the result's JSON Schema.")],
    changelog: Annotated[str, typer.Option(help="What has changed.")] = "",
    deprecates: Annotated[str | None, typer.Option(help="Which version it succeeds.")] = None,
    owner: Annotated[str | None, typer.Option(help="Whose; for administrators.")] = None,
) -> None:
    """Publish a version of a capability that an agent of yours offers."""
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
    """List the versions of a capability, the newest first."""
    reply = session.client.versions_of(capability, limit=100)
    columns = ("version", "status", "publishedAt", "sunsetAt", "changelog")
    session.show_table(reply, reply["versions"], columns)


@verb(app, "show")
def show(session: Session, capability: _Capability, version: _Version) -> None:
    """Show a version with its schemas, and what it breaks of the one before."""
    session.show_record(session.client.version(capability, version))


@verb(app, "deprecate")
def deprecate(
    session: Session,
    capability: _Capability,
    version: _Version,
    successor: Annotated[str | None, typer.Option(help="Which version to use instead.")] = None,
) -> None:
    """Deprecate a version, for good: it ends in 12 months."""
    session.show_record(session.client.deprecate_version(capability, version, successor=successor))


@verb(app, "negotiate")
def negotiate(
    session: Session,
    capability: _Capability,
    supported: Annotated[
        list[str], typer.Argument(help="Versions or ranges.", metavar="SUPPORTED...")
    ],
    preferred: Annotated[str | None, typer.Option(help="Chosen if it is among them.")] = None,
) -> None:
    """Show which version to use, and the way from it to the latest."""
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
