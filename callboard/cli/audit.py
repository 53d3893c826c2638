"""`audit`: read the chain and check it. Reference: money.md (Audit chain)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import EXIT_REFUSED, EXIT_USAGE, Session, stop, verb

app = typer.Typer(help="Read and verify the audit chain.", no_args_is_help=True)

calling_verb(
    app, "list", "audit", "List audit entries, newest first.",
    options="limit=100 cursor event_type target_id",
    columns="id createdAt eventType actorDid targetType targetId",
)  # fmt: skip


@verb(app, "verify")
def verify(
    session: Session,
    file: Annotated[
        Path | None, typer.Option(help="JSON Lines export to verify, instead of the service.")
    ] = None,
) -> None:
    """Verify the audit chain: recompute every hash and link."""
    from callboard.verify import ChainBroken, EntriesHidden, verify_chain

    entries: Iterable[Mapping[str, Any]]
    entries = session.client.iterate_audit() if file is None else _entries_of_file(file)
    try:
        chain = verify_chain(entries)
    except ChainBroken as error:
        if session.is_json:
            print(json.dumps({"intact": False, "error": str(error)}, indent=2))
        stop(EXIT_REFUSED, f"chain broken: {error}")
    except EntriesHidden as error:
        if session.is_json:
            found = {"intact": None, "entries": error.entries, "hidden": error.hidden}
            print(json.dumps({**found, "error": str(error)}, indent=2))
        stop(EXIT_REFUSED, str(error))
    session.show(
        {"intact": True, "entries": chain.entries, "headHash": chain.head_hash},
        lambda: print(f"{chain.entries} entries, chain intact, head {chain.head_hash}"),
    )


def _entries_of_file(path: Path) -> list[dict[str, Any]]:
    try:
        entries = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        stop(EXIT_USAGE, f"cannot read audit entries from {path}: {error}")
    if not all(isinstance(entry, dict) and type(entry.get("id")) is int for entry in entries):
        stop(EXIT_USAGE, f"{path} holds a line that is no audit entry")
    # An export is in order of ids, a saved page newest first.
    return entries[::-1] if entries and entries[0]["id"] < entries[-1]["id"] else entries
