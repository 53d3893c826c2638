"""The noun `audit` and the verb `verify`: read, export and verify the audit log and bundles.

Reference: money.md (Checkpoints, Verifying the chain).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from callboard.cli.method_verbs import calling_verb
from callboard.cli.session import (
    EXIT_REFUSED,
    EXIT_USAGE,
    Session,
    cell,
    noun,
    printable,
    stop,
    top,
    verb,
)

if TYPE_CHECKING:
    from callboard.verify import Log, Proof

T = TypeVar("T")
audit_log = noun("audit", "Read, export and verify the audit log.", "Operate")

_FOLLOWED = ("id", "createdAt", "eventType", "actorDid", "targetType", "targetId")

calling_verb(
    audit_log, "list", "audit", "List audit entries, newest first.",
    options="limit=100 cursor event_type target_id",
    columns="id createdAt eventType actorDid targetType targetId",
)  # fmt: skip
calling_verb(
    audit_log, "check", "check_audit", "Let the service check its stored entries.",
    options="from_id limit",
)  # fmt: skip


@verb(audit_log, "follow")
def follow(
    session: Session,
    event_type: Annotated[
        str | None, typer.Option(help="Only entries with these event types, parted by commas.")
    ] = None,
    workflow: Annotated[str | None, typer.Option(help="Only entries about this workflow.")] = None,
    after: Annotated[
        int | None, typer.Option(help="Entry to begin after; default: the newest.")
    ] = None,
) -> None:
    """Print audit entries as they are committed, until it is interrupted."""
    for entry in session.client.events(
        event_type=event_type, workflow_id=workflow, last_event_id=after
    ):
        row = [entry.get(name) for name in _FOLLOWED]
        text = json.dumps(entry) if session.is_json else "  ".join(map(cell, row))
        print(text, flush=True)


_File = Annotated[Path, typer.Argument(help="The file.", metavar="FILE")]
_FirstKey = Annotated[
    str, typer.Option("--key", help="The deployment's first signing key, base64.")
]
_Notes = Annotated[
    list[Path] | None,
    typer.Option("--checkpoint", help="File with a checkpoint of the log; repeatable."),
]


@verb(audit_log, "export")
def export(session: Session, file: _File) -> None:
    """Export the audit log, up to its newest checkpoint; continues the file if it exists."""
    from callboard.proofs import export_log

    try:
        added, size = export_log(session.client, file)
    except (OSError, ValueError, LookupError, TypeError) as error:
        stop(EXIT_USAGE, f"cannot write an export to {file}: {error}")
    session.show(
        {"added": added, "entries": size, "file": str(file)},
        lambda: print(f"{file} has {size} entries ({added} new) and ends with a signed checkpoint"),
    )


@verb(audit_log, "verify")
def verify(session: Session, key: _FirstKey = "") -> None:
    """Verify the audit log of the service: every hash, link, root and signature."""
    from callboard.proofs import audit_lines
    from callboard.verify import verify_log

    note = session.client.audit_checkpoint().note
    log = checked(lambda: verify_log(audit_lines(session.client), key, [note]))
    _show_log(session, log, key, named_by="log")


@verb(top, "verify", "Use")
def verify_file(
    session: Session, file: _File, key: _FirstKey = "", checkpoint: _Notes = None
) -> None:
    """Verify an exported audit log or a bundle offline."""
    from callboard.verify import verify_bundle, verify_log

    try:
        notes = [path.read_text("utf-8", "replace") for path in checkpoint or ()]
        with file.open("rb") as lines:
            is_bundle = lines.read(10) == b'{"bundle":'
            lines.seek(0)
            if is_bundle and notes:
                stop(EXIT_USAGE, "--checkpoint is for an exported log; a bundle has its own")
            if is_bundle:
                proof = checked(lambda: verify_bundle(lines.read(), key))
                members = {"valid": True, "proven": proof.parts, "keyId": proof.key_id}
                members |= {"success": proof.success}
                session.show(
                    {**members, "isKeyPinned": bool(key)},
                    lambda: print("\n".join(proof_lines(proof, key))),
                )
            else:
                log = checked(lambda: verify_log(lines, key, notes))
                _show_log(session, log, key, named_by="file")
    except OSError as error:
        stop(EXIT_USAGE, f"cannot read {error.filename}: {error.strerror}")


def checked(check: Callable[[], T]) -> T:
    """Run a check and return its result; end the process if the check finds a defect."""
    from callboard.verify import NotProven

    try:
        return check()
    except NotProven as error:
        stop(EXIT_REFUSED, printable(f"not proven: {error}"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        stop(EXIT_REFUSED, f"not proven: the file is malformed: {error!r}")


def _show_log(session: Session, log: Log, key: str, *, named_by: str) -> None:
    signed = f"entries 1 to {log.signed} are signed by key {log.key_id}{_pinned(key, named_by)}"
    if log.signed < log.entries:
        signed += f"\nentries {log.signed + 1} to {log.entries} are linked, but not signed"
    members: dict[str, Any] = {"intact": True, "entries": log.entries, "headHash": log.head_hash}
    session.show(
        {**members, "signedEntries": log.signed, "keyId": log.key_id, "isKeyPinned": bool(key)},
        lambda: print(f"{log.entries} entries, chain intact, head {log.head_hash}\n{signed}"),
    )


def proof_lines(proof: Proof, key: str) -> list[str]:
    """Return the lines that say what a verified bundle proves.

    Args:
        proof: the result of the verification.
        key: the first signing key that the caller named, empty if the bundle named it.
    """
    proven = [part for part, is_proven in proof.parts.items() if is_proven]
    others = [part for part, is_proven in proof.parts.items() if not is_proven]
    done = proof.success
    return [
        printable(
            f"node {done['nodeId']} of workflow {done['workflowId']} has succeeded:"
            f" audit entry {done['auditId']}\nagent {done['agentDid']}, result {done['outputHash']}"
        ),
        f"proven: {', '.join(['success', *proven])}",
        f"in the bundle, but not proven: {', '.join([*others, 'node'])}",
        f"the checkpoint is signed by key {proof.key_id}{_pinned(key, 'file')}",
        "a bundle cannot show later rotations: compare this key with those that the deployment"
        " lists",
    ]


def _pinned(key: str, named_by: str) -> str:
    return "" if key else f"; the {named_by} itself names the first key: check it with --key"
