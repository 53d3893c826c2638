"""`capability`: versions of capabilities. Reference: features.md (Capability versions)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import Session, object_in, verb

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
        input_schema=object_in(input_schema, "a JSON Schema"),
        output_schema=object_in(output_schema, "a JSON Schema"),
        changelog=changelog,
        deprecates_version=deprecates,
        owner_did=owner,
    )
    session.show_record(reply)


calling_verb(
    app, "list", "versions_of", "List the versions of a capability, newest first.", "capability",
    options="limit=100 cursor", columns="version status publishedAt sunsetAt changelog",
)  # fmt: skip
calling_verb(
    app, "show", "version", "Show a version, its schemas and its breaking changes.",
    "capability version",
)  # fmt: skip
calling_verb(
    app, "deprecate", "deprecate_version",
    "Deprecate a version permanently; it is removed after 12 months.", "capability version",
    options="successor",
)  # fmt: skip
calling_verb(
    app, "negotiate", "negotiate_version",
    "Show the version to use and the upgrade path to the latest one.", "capability supported",
    options="preferred",
)  # fmt: skip
